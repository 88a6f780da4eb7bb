"""Each example renders to the same bytes as when somebody last read them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.cli.common import load_job
from orchestrator.render import Rendered, render
from trainer.config import parse_config

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = Path(__file__).parent / "files"
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
TARGETS = ["local", "slurm"]


def render_example(example: Path, target: str) -> Rendered:
    return render(load_job(example, None, None, [], target=target).plan())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_bytes_are_those_that_were_read(
    example: Path, target: str, update_golden: bool
) -> None:
    rendered = render_example(example, target)
    for name, text in rendered.files.items():
        golden = GOLDEN / f"{example.stem}.{target}.{name}"
        if update_golden:
            golden.parent.mkdir(exist_ok=True)
            golden.write_text(text, "utf-8")
        assert golden.read_text("utf-8") == text, (
            f"{golden.name} differs; make golden, read the diff"
        )


def test_no_golden_file_is_left_over() -> None:
    expected = {
        f"{example.stem}.{target}.{name}"
        for example in EXAMPLES
        for target in TARGETS
        for name in render_example(example, target).files
    }
    assert {path.name for path in GOLDEN.iterdir()} == expected


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


def test_a_render_carries_nothing_of_this_machine(tmp_path: Path) -> None:
    """The same job in another folder, under another user and home, gives the same bytes."""
    import getpass
    import socket

    other = tmp_path / "elsewhere"
    other.mkdir()
    shutil.copy(ROOT / "examples" / "demo.yaml", other / "demo.yaml")
    here = render_example(ROOT / "examples" / "demo.yaml", "local")
    there = render_example(other / "demo.yaml", "local")
    assert here == there
    text = json.dumps(here.files)
    for word in (str(ROOT), str(Path.home()), socket.gethostname(), str(tmp_path)):
        assert word not in text
    assert getpass.getuser() not in {"", None}
