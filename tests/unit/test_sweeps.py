"""The folders of a sweep's elements: what is written there and what is read again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.backends import folder, sweeps
from orchestrator.backends.base import Element, Handle, State, Status
from orchestrator.backends.site import LocalSite
from orchestrator.cli.table import sweep_table
from orchestrator.errors import BackendError, UserError

SITE = LocalSite()
NAMES = ["runs", "r u'n\"s\n$(x)`y` k=v,w *?ü"]
VALUES = [{"train.seed": 1}, {"train.seed": 2}, {"train.seed": 3}]


@dataclass(frozen=True)
class Files:
    name: str
    files: dict[str, str]


def rendered(values: Sequence[dict[str, int]] = VALUES) -> Files:
    sweep = {"version": 1, "at_once": 2, "values": values}
    files = {"job.sh": "", "launch.json": "{}", "sweep.json": json.dumps(sweep)}
    files |= {f"trainer-{n:05}.json": f'{{"steps": {n}}}' for n in range(len(values))}
    return Files("tune", files)


def submitted(root: Path, numbers: Sequence[int] = (0, 1, 2)) -> Handle:
    """A sweep of three elements, of which some were started."""
    handle = Handle("slurm", "tune", root / "tune", {"job": "9"}, 3)
    folder.write(SITE, handle.run_dir, rendered(), "name: tune\n", {"launch/node.py": b"x"})
    sweeps.prepare(SITE, handle.run_dir, rendered(), numbers)
    own = [sweeps.element(handle, n, {"job": f"9_{n}"}) for n in numbers]
    sweeps.write_receipts(SITE, handle, own, root, rendered())
    return handle


def asked(handles: Sequence[Handle]) -> list[Status]:
    """Every second run is done."""
    found = enumerate(handles)
    return [Status(h.run, (State.DONE, State.RUNNING)[n % 2], 1, "", 3, 7) for n, h in found]


@pytest.mark.parametrize("name", NAMES)
def test_each_element_has_a_whole_run_folder(tmp_path: Path, name: str) -> None:
    handle = submitted(tmp_path / name, (0, 2))
    element = handle.run_dir / "2"
    assert (element / "rendered/trainer.json").read_text() == '{"steps": 2}'
    assert (element / "rendered/launch.json").read_text() == "{}"
    assert (element / "launch/node.py").read_text() == "x"
    assert (element / "logs").is_dir()
    assert json.loads((element / "receipt.json").read_text())["files"] == [
        "launch.json", "trainer.json",
    ]  # fmt: skip
    assert folder.owned(SITE, handle.run_dir, "slurm") == handle
    two = Handle("slurm", "tune/2", element, {"job": "9_2"})
    assert folder.owned(SITE, element, "slurm") == two
    never = Handle("slurm", "tune/1", handle.run_dir / "1")
    assert sweeps.element_handles(SITE, handle)[1:] == [never, two]
    assert folder.find(SITE, tmp_path / name, "slurm") == [handle]


def test_what_is_prepared_again_keeps_what_was_done_and_drops_a_cancel(tmp_path: Path) -> None:
    handle = submitted(tmp_path)
    for kept in ("cancel", "metrics.jsonl"):
        (handle.run_dir / "1" / kept).write_text("x")
    (handle.run_dir / "0/DONE").touch()
    sweep = sweeps.read_sweep(SITE, handle.run_dir)
    assert sweep == sweeps.sweep_of(rendered())
    assert sweep is not None
    left = sweeps.numbers_left(SITE, handle.run_dir, sweep)
    assert left == [1, 2]
    sweeps.prepare(SITE, handle.run_dir, rendered(), left)
    names = {path.name for path in (handle.run_dir / "1").iterdir()}
    assert names == {"launch", "logs", "metrics.jsonl", "receipt.json", "rendered"}


@pytest.mark.parametrize("name", NAMES)
def test_losses_of_elements(tmp_path: Path, name: str) -> None:
    handle = submitted(tmp_path / name)
    lines: list[object] = [
        {"step": 1, "loss": 4.0}, {"event": "validation", "step": 1, "loss": 2.5},
        {"event": "validation", "step": 2, "loss": 1.5}, {"event": "validation", "loss": None},
        {"event": "validation", "loss": float("nan")}, {"event": "validation", "loss": True},
        {"step": 2, "loss": 3.0}, {"event": "validation", "step": 3, "loss": 2},
        {"event": "sample", "text": '"validation"', "loss": 0.1}, ["validation"],
    ]  # fmt: skip
    text = "\n".join(map(json.dumps, lines))
    (handle.run_dir / "0/metrics.jsonl").write_text(text + '\n{"event": "validation", "loss": 1')
    (handle.run_dir / "1/metrics.jsonl").write_bytes(b'\0\n\xff "validation"\n{"step": 1}\n')
    rows = sweeps.elements(SITE, handle, asked)
    assert [(row.loss, row.best_validation_loss) for row in rows] == [
        (3.0, 1.5), (None, None), (None, None),
    ]  # fmt: skip
    assert [row.values for row in rows] == VALUES
    assert [row.status.state for row in rows] == [State.DONE, State.RUNNING, State.DONE]


def test_one_question_for_sweeps_and_single_runs(tmp_path: Path) -> None:
    handle = submitted(tmp_path)
    single = Handle("slurm", "demo", tmp_path / "demo")
    questions: list[list[str]] = []

    def ask(handles: Sequence[Handle]) -> list[Status]:
        questions.append([h.run for h in handles])
        return asked(handles)

    first, sweep, last = sweeps.statuses(SITE, [single, handle, single], ask)
    assert questions == [["demo", "tune/0", "tune/1", "tune/2", "demo"]]
    assert (first.state, last.state) == (State.DONE, State.DONE)
    assert sweep == Status("tune", State.RUNNING, reason="of 3 elements: 2 RUNNING, 1 DONE")
    assert sweeps.elements(SITE, single, ask) == []


def test_what_a_sweep_may_become(tmp_path: Path) -> None:
    handle = submitted(tmp_path)
    sweeps.check_continues(SITE, None, None)
    for values in (VALUES, VALUES[:2], [*VALUES, {"train.seed": 4}]):
        sweeps.check_continues(SITE, handle, sweeps.sweep_of(rendered(values)))
    with pytest.raises(UserError, match=r"element 1 of tune was train\.seed=2, and would be"):
        sweeps.check_continues(SITE, handle, sweeps.sweep_of(rendered([VALUES[0], VALUES[2]])))
    with pytest.raises(UserError, match="it was a sweep, and would be a single run"):
        sweeps.check_continues(SITE, handle, None)
    single = Handle("slurm", "demo", tmp_path / "demo")
    with pytest.raises(UserError, match="it was a single run, and would be a sweep"):
        sweeps.check_continues(SITE, single, sweeps.sweep_of(rendered()))


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("in the way")
    with pytest.raises(BackendError, match="0"):
        folder.unpack(SITE, tmp_path, {"0/x": b""})


def test_a_table_of_elements() -> None:
    handle = Handle("slurm", "tune/0", Path("/r/tune/0"))
    going = Status("tune/0", State.RUNNING, 2, "", 3, 7)
    waits = Status("tune/1", State.PENDING)
    one = {"train.optimizer.lr": 0.1, "train.optimizer.name": "x" * 30, "train.schedule.name": None}
    two = {"train.optimizer.lr": 1, "train.optimizer.name": "\x1b[0m"}
    rows = [Element(0, handle, going, one, 1.25, 0.5), Element(1, handle, waits, two)]
    lines = sweep_table(rows).splitlines()
    assert [line.split() for line in lines] == [
        ["ELEMENT", "lr", "train.optimizer.name", "train.schedule.name", "STATE", "ATTEMPT",
         "STEP", "LOSS", "BEST", "VALIDATION"],
        ["0", "0.1", "x" * 21 + "...", "null", "RUNNING", "2", "3/7", "1.2500", "0.5000"],
        ["1", "1", "?[0m", "-", "PENDING", "-", "-", "-", "-"],
    ]  # fmt: skip
    assert not any(line.endswith(" ") for line in lines)
