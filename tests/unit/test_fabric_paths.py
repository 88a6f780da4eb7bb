"""A site's own fabric is found beside the file that names it, wherever a command is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from networks import JOB

Cli = Callable[..., tuple[int, str, str]]
OURS = """\
version: 1
name: ours
summary: ours
backends: [nccl]
reviewed: 2026-11
tried: true
extends: ./base/theirs.yaml
"""
PROFILE = "clusters:\n  big: {target: slurm, runs_root: /runs"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a preset that extends another one, and a working folder beside it."""
    (tmp_path / "site/base").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "site/ours.yaml").write_text(OURS)
    theirs = OURS.replace("ours", "theirs").replace("./base/theirs.yaml", "../roce-us.yaml")
    (tmp_path / "site/base/theirs.yaml").write_text(theirs)
    (tmp_path / "site/roce-us.yaml").write_text(OURS.replace("./base/theirs.yaml", "roce"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "site"


@pytest.mark.parametrize(
    ("job", "profile"),
    [
        ("network: {fabric: ./ours.yaml}", "}"),
        ("network: {fabric: base/../ours.yaml}", "}"),
        ("clusters: {big: {network: {fabric: ./ours.yaml}}}", "}"),
        ("", ", fabric: ./ours.yaml}"),
        ("", ", defaults: {network: {fabric: ./ours.yaml}}}"),
    ],
)
def test_it_lies_beside_the_job_file_or_the_profile(
    cli: Cli, site: Path, job: str, profile: str
) -> None:
    (site / "job.yaml").write_text(JOB + job + "\n")
    (site / "clusters.yaml").write_text(PROFILE + profile)
    for path in ("../site", str(site)):
        given = (f"{path}/job.yaml", "--clusters", f"{path}/clusters.yaml", "--cluster", "big")
        for argv in (["validate"], ["render", "--json"], ["submit", "--dry-run"]):
            code, out, err = cli(*argv, *given)
            assert (code, "warning" in err) == (0, False), err
            if argv[0] == "render":
                trainer = json.loads(json.loads(out)["files"]["trainer.json"])
                assert trainer["network"]["fabric"] == "ours"


def test_it_lies_in_the_working_folder_where_the_command_line_names_it(
    cli: Cli, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site / "job.yaml").write_text(JOB)
    given = ("validate", str(site / "job.yaml"), "--cluster", "slurm")
    set_ours = ("--set", "network.fabric=./ours.yaml")
    code, _, err = cli(*given, *set_ours)
    assert (code, "ours.yaml: no such file in" in err) == (2, True)
    assert cli("fabric", "show", "./ours.yaml")[0] == 2
    monkeypatch.chdir(site)
    assert cli(*given, *set_ours)[0] == 0
    code, out, _ = cli("fabric", "show", "./ours.yaml")
    assert (code, "NCCL_IB_HCA=mlx5" in out) == (0, True)
