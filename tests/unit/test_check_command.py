"""`orchestrate check` on the command line: what it prints, and with which exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from check_examples import HEAD

Cli = Callable[..., tuple[int, str, str]]
LOADS = f"{HEAD}state = torch.load('model.pt')\n"


def test_findings(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOADS)
    code, out, _ = cli("check", "train.py")
    assert code == 1
    assert "train.py:14:9 load-without-map-location: tensors go back" in out
    assert "    state = torch.load('model.pt')\n            ^\n" in out
    assert "fix: give torch.load map_location" in out
    assert cli("check", "train.py", "--ignore", "load-without-map-location")[0] == 0
    code, out, _ = cli("check", "train.py", "--json")
    (finding,) = json.loads(out)["findings"]
    place = (finding["file"], finding["line"], finding["column"], finding["key"])
    assert (code, *place) == (1, "train.py", 14, 9, "load-without-map-location")


def test_none(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD)
    assert cli("check", "train.py") == (0, "nothing found\n", "")
    code, out, _ = cli("check", "train.py", "--json")
    nothing: dict[str, list[str]] = {"findings": [], "not_judged": [], "left_out": []}
    assert (code, json.loads(out)) == (0, nothing)


def test_what_is_no_python_is_told_with_its_line_beside_the_findings_of_others(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(LOADS)
    (tmp_path / "half.py").write_text("import torch\nx = (\n")
    code, out, err = cli("check", "half.py", "train.py")
    assert code == 2
    assert "train.py:14:9" in out
    assert "half.py:2:5: no Python: '(' was never closed" in err
    code, out, _ = cli("check", "half.py", "--json")
    (fault,) = json.loads(out)["faults"]
    assert (code, fault["line"]) == (2, 2)


def test_a_rule_that_is_not_there_and_a_file_that_is_not_there(cli: Cli) -> None:
    code, _, err = cli("check", "train.py", "--ignore", "gpu-1")
    assert code == 2
    assert "--ignore gpu-1: no such rule; there are" in err
    assert cli("check", "train.py")[0] == 2


def test_a_file_that_is_too_large_is_not_cut_and_judged(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("#" * (2**20 + 1))
    code, _, err = cli("check", "train.py")
    assert (code, "train.py: larger than 1048576 bytes" in err) == (2, True)
