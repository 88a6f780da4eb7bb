"""Each example renders to the same bytes as when somebody last read them."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from orchestrator.cli.common import load_job
from orchestrator.errors import UserError
from orchestrator.render import Rendered, render
from orchestrator.spec.kubernetes import Kubernetes
from trainer.config import parse_config

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).parent
GOLDEN = HERE / "files"
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
KUBERNETES = ["job", "jobset", "pytorchjob", "trainjob"]
TARGETS = ["local", "slurm", *KUBERNETES]
# What a target cannot do, and a word of the reason. All other examples render for every target.
REFUSED = {("sweep", target): "sweep" for target in KUBERNETES}
CASES = [(e, t) for e in EXAMPLES for t in TARGETS if (e.stem, t) not in REFUSED]


@functools.cache
def render_example(example: Path, target: str) -> Rendered:
    return render(load_job(example, None, None, [], target=target).plan())


def render_rich(target: str) -> Rendered:
    """The job of this folder on its cluster of that kind."""
    clusters = str(HERE / "kubernetes.yaml")
    return render(load_job(HERE / "rich.yaml", f"rich-{target}", clusters, []).plan())


def golden_names() -> Iterator[str]:
    for example, target in CASES:
        for name in kept(render_example(example, target)):
            yield f"{example.stem}.{target}.{name}"
    for target in KUBERNETES:
        for name in render_rich(target).files:
            yield f"rich.{target}.{name}"


def kept(rendered: Rendered) -> dict[str, str]:
    """What is compared byte for byte; what the pods read is that of Slurm, see below."""
    if rendered.target not in KUBERNETES:
        return rendered.files
    again = ("config.yaml", "launch.json", "trainer.json")
    return {name: text for name, text in rendered.files.items() if name not in again}


def check(rendered: Rendered, files: dict[str, str], job: str, update: bool) -> None:
    for name, text in files.items():
        golden = GOLDEN / f"{job}.{rendered.target}.{name}"
        if update:
            golden.parent.mkdir(exist_ok=True)
            golden.write_text(text, "utf-8")
        assert golden.read_text("utf-8") == text, (
            f"{golden.name} differs; make golden, read the diff"
        )


@pytest.mark.parametrize(("example", "target"), CASES, ids=lambda part: getattr(part, "stem", part))
def test_the_bytes_are_those_that_were_read(
    example: Path, target: str, update_golden: bool
) -> None:
    rendered = render_example(example, target)
    check(rendered, kept(rendered), example.stem, update_golden)


@pytest.mark.parametrize(
    ("example", "target"),
    [case for case in CASES if case[1] in KUBERNETES],
    ids=lambda part: getattr(part, "stem", part),
)
def test_the_pods_read_what_the_nodes_of_slurm_do(example: Path, target: str) -> None:
    files = render_example(example, target).files
    data = yaml.safe_load(files["config.yaml"])["data"]
    assert data.keys() == {"launch.json", "trainer.json"}
    for name, text in data.items():
        assert files[name] == text
        assert text == (GOLDEN / f"{example.stem}.slurm.{name}").read_text("utf-8")


@pytest.mark.parametrize("target", KUBERNETES)
def test_the_bytes_of_every_key_are_those_that_were_read(target: str, update_golden: bool) -> None:
    rendered = render_rich(target)
    check(rendered, rendered.files, "rich", update_golden)


def test_the_clusters_of_the_rich_job_use_every_key() -> None:
    profiles = yaml.safe_load((HERE / "kubernetes.yaml").read_text("utf-8"))["clusters"].values()
    used = {key for profile in profiles for key in profile["kubernetes"]}
    assert used == set(Kubernetes.model_fields)


@pytest.mark.parametrize(("job", "target"), REFUSED)
def test_what_a_target_cannot_do_is_refused(job: str, target: str) -> None:
    with pytest.raises(UserError, match=REFUSED[job, target]):
        render_example(ROOT / "examples" / f"{job}.yaml", target)


def test_no_golden_file_is_left_over() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(golden_names())


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.trainer*.json")), ids=lambda path: path.name)
def test_the_trainer_reads_what_the_planner_wrote(file: Path) -> None:
    raw = json.loads(file.read_text("utf-8"))
    assert parse_config(raw, file.name).name == raw["name"]


@pytest.mark.parametrize("script", sorted(GOLDEN.glob("*.sh")), ids=lambda path: path.name)
def test_rendered_scripts_pass_shellcheck(script: Path) -> None:
    shellcheck = shutil.which("shellcheck") or str(
        Path(__import__("sys").executable).parent / "shellcheck"
    )
    result = subprocess.run([shellcheck, str(script)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_a_render_carries_nothing_of_this_machine(tmp_path: Path, target: str) -> None:
    """The same job in another folder, under another user and home, gives the same bytes."""
    import getpass
    import socket

    other = tmp_path / "elsewhere"
    other.mkdir()
    shutil.copy(ROOT / "examples" / "demo.yaml", other / "demo.yaml")
    here = render_example(ROOT / "examples" / "demo.yaml", target)
    there = render_example(other / "demo.yaml", target)
    assert here == there
    text = json.dumps(here.files)
    for word in (str(ROOT), str(Path.home()), socket.gethostname(), str(tmp_path)):
        assert word not in text
    assert getpass.getuser() not in {"", None}
