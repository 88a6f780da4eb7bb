"""docs/tutorial-ddp.md shows what is in examples/: every changed line, the job file, the findings.

`make golden` writes the blocks anew that are a file's or a command's own words.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli import orchestrate

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "tutorial-ddp.md"
BEFORE, AFTER = ROOT / "examples" / "single_gpu.py", ROOT / "examples" / "ddp.py"
CHECK = "$ orchestrate check examples/single_gpu.py\n"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def side(block: str, marks: str) -> str:
    """The lines of a diff on one side of it, without their marks."""
    return "".join(line[1:] for line in block.splitlines(keepends=True) if line[0] in marks)


def changes(marks: str) -> list[str]:
    """The lines that only one of the two scripts has; their first three say what they are."""
    before, after = (path.read_text("utf-8").splitlines()[3:] for path in (BEFORE, AFTER))
    return [line for line in difflib.unified_diff(before, after, n=0) if is_change(line, marks)]


def is_change(line: str, marks: str) -> bool:
    return line[:1] in marks and line[:3] not in ("---", "+++")


@pytest.mark.parametrize("block", blocks("diff"), ids=lambda block: block.split("\n")[1][:40])
def test_a_change_is_that_of_the_scripts(block: str) -> None:
    assert all(line[:1] in ("-", "+", " ") for line in block.splitlines())
    assert side(block, "- ") in BEFORE.read_text("utf-8")
    assert side(block, "+ ") in AFTER.read_text("utf-8")


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.split("\n")[0][:40])
def test_a_part_is_that_of_the_third_script(block: str) -> None:
    assert block in (ROOT / "examples" / "ddp_restart.py").read_text("utf-8")


@pytest.mark.parametrize("mark", ["-", "+"])
def test_every_change_of_the_scripts_is_shown(mark: str) -> None:
    lines = [line for block in blocks("diff") for line in block.splitlines()]
    assert sorted(line for line in lines if line[0] == mark) == sorted(changes(mark))


def findings() -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        run = CliRunner().invoke(orchestrate, ["check", "examples/single_gpu.py"])
    assert run.exit_code == 1
    return CHECK + run.output


def job_file() -> str:
    return (ROOT / "examples" / "own-model.yaml").read_text("utf-8")


def test_the_findings_and_the_job_file_are_shown_as_they_are(update_golden: bool) -> None:
    text = PAGE.read_text("utf-8")
    shown = re.sub(rf"^{re.escape(CHECK)}[^`]*(?=^```$)", findings(), text, flags=re.MULTILINE)
    shown = re.sub(r"(?<=^```yaml\n)[^`]*(?=^```$)", job_file(), shown, flags=re.MULTILINE)
    if update_golden:
        PAGE.write_text(shown, "utf-8")
    assert PAGE.read_text("utf-8") == shown, "docs/tutorial-ddp.md differs; make golden"
    assert CHECK in shown
    assert job_file() in shown


def test_the_script_before_has_the_mistakes_and_the_one_after_has_none() -> None:
    rules = set(re.findall(r"^examples/single_gpu.py:\d+:\d+ (\S+):", findings(), re.MULTILINE))
    assert rules == {"gradients-apart", "gpu-0", "no-sampler", "save-on-every-rank"}
    for name in ("ddp.py", "ddp_restart.py"):
        run = CliRunner().invoke(orchestrate, ["check", str(ROOT / "examples" / name)])
        assert (run.exit_code, run.output) == (0, "nothing found\n")
