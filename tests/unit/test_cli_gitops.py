"""A folder of manifests in git: written, checked and compared as a CI job and a person do it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., tuple[int, str, str]]

JOB = """\
name: good
train:
  model: {preset: nano}
  data: {synthetic: {samples: 64}}
  steps: 5
"""

CLUSTERS = """\
default: east
clusters:
  east: {target: job, runs_root: /runs, kubernetes: {namespace: a, runs: {pvc: runs}}}
  west: {target: job, runs_root: /runs, kubernetes: {namespace: b, runs: {pvc: other}}}
  metal: {target: slurm}
"""

BOTH = ("--clusters", "c.yaml", "--cluster", "east", "--cluster", "west")
FILES = [
    "base/job.yaml",
    "base/kustomization.yaml",
    "base/launch.json",
    "base/service.yaml",
    "base/trainer.json",
    "overlays/east/kustomization.yaml",
    "overlays/west/kustomization.yaml",
]


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "c.yaml").write_text(CLUSTERS)


def files_in(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_a_render_for_two_clusters_is_a_base_and_two_overlays(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("render", "job.yaml", *BOTH, "-o", "deploy")
    assert (code, out.split()) == (0, [f"deploy/{name}" for name in FILES])
    assert "cluster east" in err
    assert "cluster west" in err
    assert files_in(tmp_path / "deploy") == FILES


def test_what_was_just_rendered_passes_the_check(cli: Cli, tmp_path: Path) -> None:
    cli("render", "job.yaml", *BOTH, "-o", "deploy")
    assert cli("render", "job.yaml", *BOTH, "--check", "deploy")[:2] == (
        0,
        "deploy: as it would be rendered\n",
    )
    assert cli("diff", "job.yaml", "deploy", *BOTH)[:2] == (0, "no difference\n")


def test_the_check_shows_what_is_missing_extra_and_different(cli: Cli, tmp_path: Path) -> None:
    cli("render", "job.yaml", *BOTH, "-o", "deploy")
    deploy = tmp_path / "deploy"
    service = deploy / "base" / "service.yaml"
    (deploy / "base" / "old.yaml").write_text(service.read_text())
    service.unlink()
    trainer = deploy / "base" / "trainer.json"
    trainer.write_text(trainer.read_text().replace('"steps": 5', '"steps": 6'))
    before = {name: (deploy / name).read_bytes() for name in files_in(deploy)}
    code, out, err = cli("render", "job.yaml", *BOTH, "--check", "deploy")
    assert code == 1
    assert '-  "steps": 6,\n+  "steps": 5,\n' in out
    assert "--- deploy/base/old.yaml\n+++ /dev/null\n" in out
    assert "--- /dev/null\n+++ deploy/base/service.yaml\n" in out
    for words in ("old.yaml extra", "service.yaml missing", "trainer.json different"):
        assert words in err
    assert {name: (deploy / name).read_bytes() for name in files_in(deploy)} == before
    assert cli("diff", "job.yaml", "deploy", *BOTH)[:2] == (1, out)


def test_the_check_as_json(cli: Cli, tmp_path: Path) -> None:
    cli("render", "job.yaml", *BOTH, "-o", "deploy")
    argv = ("render", "job.yaml", *BOTH, "--check", "deploy", "--json")
    code, out, _ = cli(*argv, "--set", "train.steps=6")
    report = json.loads(out)
    assert (code, report["same"]) == (1, False)
    assert {file["path"] for file in report["files"]} == {
        "base/job.yaml",
        "base/kustomization.yaml",
        "base/service.yaml",
        "base/trainer.json",
        "overlays/west/kustomization.yaml",
    }
    code, out, _ = cli(*argv)
    assert (code, json.loads(out)) == (0, {"same": True, "files": []})


def test_line_ends_and_bytes_that_are_no_text_are_differences(cli: Cli, tmp_path: Path) -> None:
    cli("render", "job.yaml", *BOTH, "-o", "deploy")
    launch = tmp_path / "deploy" / "base" / "launch.json"
    good = launch.read_bytes()
    for bad in (good.replace(b"\n", b"\r\n"), good + b"\xff", good[:-1]):
        launch.write_bytes(bad)
        code, out, _ = cli("render", "job.yaml", *BOTH, "--check", "deploy")
        assert code == 1
        assert "--- deploy/base/launch.json" in out


def test_another_render_removes_what_it_has_left_and_nothing_else(cli: Cli, tmp_path: Path) -> None:
    cli("render", "job.yaml", *BOTH, "-o", "deploy")
    deploy = tmp_path / "deploy"
    (deploy / "README.md").write_text("mine")
    (deploy / "overlays" / "own").mkdir()
    (deploy / "overlays" / "own" / "kustomization.yaml").write_text("resources: [../../base]\n")
    (deploy / "base" / "notes.yaml").write_text("mine: true\n")
    cli("render", "job.yaml", *BOTH[:4], "-o", "deploy")
    assert files_in(deploy) == sorted(
        [*FILES[:-1], "README.md", "base/notes.yaml", "overlays/own/kustomization.yaml"]
    )
    assert not (deploy / "overlays" / "west").exists()
    code, out, err = cli("render", "job.yaml", *BOTH[:4], "--check", "deploy")
    assert code == 1
    assert "base/notes.yaml extra, overlays/own/kustomization.yaml extra" in err
    assert "-mine: true\n" in out
    assert "README" not in out + err


def test_data_that_its_kustomization_does_not_name_is_somebody_elses(
    cli: Cli, tmp_path: Path
) -> None:
    cli("render", "job.yaml", *BOTH, "-o", "deploy")
    overlays = tmp_path / "deploy" / "overlays"
    (overlays / "east" / "launch.json").write_text("mine")
    (overlays / "west" / "node.py").write_text("mine")
    cli("render", "job.yaml", *BOTH[:4], "-o", "deploy")
    mine = ["overlays/east/launch.json", "overlays/west/node.py"]
    assert [name for name in files_in(tmp_path / "deploy") if name not in FILES] == mine
    assert not (overlays / "west" / "kustomization.yaml").exists()
    (tmp_path / "deploy" / "base" / "trainer.json").rename(overlays / "east" / "trainer.json")
    code, _, err = cli("render", "job.yaml", *BOTH[:4], "--check", "deploy")
    for words in (*(f"{name} extra" for name in mine), "base/trainer.json missing"):
        assert words in err
    assert code == 1


def test_a_kustomization_of_ours_that_is_no_yaml_any_more_names_nothing(
    cli: Cli, tmp_path: Path
) -> None:
    cli("render", "job.yaml", *BOTH, "-o", "deploy")
    mark = tmp_path / "deploy" / "base" / "kustomization.yaml"
    good = mark.read_text()
    for bad in ("[", "configMapGenerator: 5\n", "configMapGenerator: [{}]\n", "- a\n"):
        mark.write_text(good.partition("\n")[0] + "\n" + bad)
        code, _, err = cli("render", "job.yaml", *BOTH, "--check", "deploy")
        assert (code, "base/kustomization.yaml different" in err) == (1, True)


@pytest.mark.parametrize(
    "path",
    ["base/.argocd-source.yaml", "base/deep/er.yaml", "overlays/east/notes.md",
     "overlays/north/kustomization.yaml", "overlays/a.yaml"],
)  # fmt: skip
@pytest.mark.parametrize("target", [BOTH, ("--target", "slurm")])
def test_a_file_that_would_be_applied_and_is_not_rendered_is_extra(
    cli: Cli, tmp_path: Path, path: str, target: tuple[str, ...]
) -> None:
    cli("render", "job.yaml", *target, "-o", "deploy")
    assert cli("render", "job.yaml", *target, "--check", "deploy")[0] == 0
    stranger = tmp_path / "deploy" / path
    stranger.parent.mkdir(parents=True, exist_ok=True)
    stranger.write_bytes(b"kind: Pod\n\xff")
    code, _, err = cli("render", "job.yaml", *target, "--check", "deploy")
    assert (code, f"{path} extra" in err) == (1, True)
    assert stranger.exists()


@pytest.mark.parametrize("name", ["base", "overlays/west", "base/trainer.json"])
def test_a_link_is_not_what_would_be_rendered(cli: Cli, tmp_path: Path, name: str) -> None:
    cli("render", "job.yaml", *BOTH, "-o", "deploy")
    place = tmp_path / "deploy" / name
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    code, out, err = cli("render", "job.yaml", *BOTH, "--check", "deploy")
    assert (code, f"{name} " in err) == (1, True)
    assert "-link to " in out


def test_files_of_others_are_not_overwritten(cli: Cli, tmp_path: Path) -> None:
    base = tmp_path / "deploy" / "base"
    base.mkdir(parents=True)
    (base / "kustomization.yaml").write_text("resources: [mine.yaml]\n")
    (base / "trainer.json").write_text("{}\n")
    code, _, err = cli("render", "job.yaml", *BOTH, "-o", "deploy")
    assert code == 2
    assert "base/kustomization.yaml, base/trainer.json: not written by" in err
    assert files_in(tmp_path / "deploy") == ["base/kustomization.yaml", "base/trainer.json"]
    assert (base / "trainer.json").read_text() == "{}\n"


def test_a_target_without_overlays_is_checked_too(cli: Cli, tmp_path: Path) -> None:
    argv = ("render", "job.yaml", "--target", "slurm")
    assert cli(*argv, "-o", "flat")[0] == 0
    assert cli(*argv, "--check", "flat")[0] == 0
    (tmp_path / "flat" / "job.sh").unlink()
    code, out, err = cli(*argv, "--check", "flat")
    assert code == 1
    assert "+#SBATCH" in out
    assert "job.sh missing" in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("render", *BOTH), "give -o or --check"),
        (("render", *BOTH, "-o", "a", "--check", "b"), "give one of them"),
        (("render", *BOTH, "--cluster", "east", "-o", "a"), "give each once"),
        (("render", *BOTH, "--target", "job", "-o", "a"), "without --target"),
        (("render", *BOTH, "--cluster", "metal", "-o", "a"), "cluster metal is for slurm"),
        (("render", *BOTH, "--check", "nowhere"), "nowhere: no such folder"),
        (("render", "--check", "c.yaml"), "is a file"),
        (("diff",), "what to compare with?"),
        (("diff", "--live", "--clusters", "c.yaml", "--cluster", "metal"), "has no objects"),
        (("diff", "nowhere"), "nowhere: no such folder"),
    ],
)
def test_a_wrong_use_is_told_with_exit_code_2(cli: Cli, argv: tuple[str, ...], words: str) -> None:
    command, *options = argv
    code, out, err = cli(command, "job.yaml", *options)
    assert (code, out) == (2, "")
    assert words in err


def test_the_faults_for_all_clusters_come_at_once_and_each_once(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB + "clusters: {west: {resources: {nodes: none}}}\nx: 1\n")
    code, _, err = cli("render", "job.yaml", *BOTH, "-o", "deploy")
    assert code == 2
    assert err.count("job.yaml:7:1 x: unknown key") == 1
    assert "clusters.west.resources.nodes" in err
    assert not (tmp_path / "deploy").exists()


def test_a_render_for_another_target_leaves_the_overlays_alone(cli: Cli, tmp_path: Path) -> None:
    cli("render", "job.yaml", *BOTH, "-o", "deploy")
    assert cli("render", "job.yaml", "--target", "slurm", "-o", "deploy")[0] == 0
    assert cli("render", "job.yaml", *BOTH, "--check", "deploy")[0] == 0
    code, _, err = cli("render", "job.yaml", "--target", "slurm", "--check", "deploy")
    assert (code, "base/kustomization.yaml extra" in err, "job.sh" in err) == (1, True, False)
