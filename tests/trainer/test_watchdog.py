"""A hang is ended, says which ranks the others wait for and where they are; what is slow is not."""

from __future__ import annotations

import json
import os
import pickle
import re
import time
from pathlib import Path
from typing import Any

import hanging
import pytest
from hanging import NodeSide, note_pid

from ranks import end_ranks, run_ranks
from runs import Listener, Run, configuration
from trainer import data, node, watchdog
from trainer.config import parse_config
from trainer.contract import Contract
from trainer.hang_report import have_told
from trainer.library_log import kept
from trainer.limits import Limits
from trainer.phase import Phase

RANKS = 3
LIMIT_S = 5.0


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "POLL_S", 0.5)
    monkeypatch.setattr(watchdog, "REPORTS_S", 8.0)
    monkeypatch.setattr(node, "STACKS_S", 1.0)


def end_of(run: Run, listener: Listener = note_pid, **changes: Any) -> None:
    """Start a run that hangs; when this returns all ranks are gone."""
    config = configuration(num_ranks=RANKS, step_timeout_s=LIMIT_S, steps=20, **changes)
    helper = NodeSide(run, RANKS)
    helper.start()
    ended = run.start(config, listener=listener)
    helper.join()
    assert {end.exit_code for end in ended} <= {1, -9}
    assert not (run.run_dir / "DONE").exists()  # what was continued for its report went no further


def hung(run: Run, **changes: Any) -> dict[str, Any]:
    """The verdict of a run that hangs."""
    end_of(run, **changes)
    (error,) = run.errors()
    assert error["kind"] == "hang"
    return error


def model(how: str, step: int = 3, rank: int = 1) -> dict[str, Any]:
    return {
        "model__factory": "hanging:build",
        "model__args": {"how": how, "step": step, "rank": rank},
    }


def texts(run: Run, pattern: str) -> list[str]:
    return [file.read_text() for file in sorted((run.attempt_dir() / "hangs").glob(pattern))]


def test_a_rank_that_hangs_is_missing_from_the_collective(tmp_path: Path) -> None:
    run = Run(tmp_path)
    error = hung(run, **model("forward"))
    first, *lines = error["message"].splitlines()
    assert re.fullmatch(
        r"no progress for [5-9][.\d]* s in step 4 \(timeouts\.step\): rank 1 \(\S+\) is missing "
        r"from all_reduce of \[\d+\] #\d+ of group 0 \(default_pg\), where ranks 0, 2 wait: "
        r"it is in phase step at .*hanging\.py:\d+ in _hang", first)  # fmt: skip
    assert error["rank"] == 1
    assert [line.split()[1] for line in lines] == ["1", "0", "2"]
    assert all("in backward" in text for text in texts(run, "rank-0000[02].stacks.txt"))
    flights = sorted((run.attempt_dir() / "hangs").glob("flight-*"))
    last = [pickle.loads(flight.read_bytes())["entries"][-1] for flight in flights]
    assert [entry["retired"] for entry in last] == [False, True, False]
    assert last[0]["collective_seq_id"] == last[1]["collective_seq_id"] + 1


def test_a_rank_that_hangs_between_its_collectives_is_missing(tmp_path: Path) -> None:
    error = hung(Run(tmp_path), **model("backward"))
    assert error["rank"] == 1
    assert re.search(
        r"rank 1 \(.*\) is missing from all_reduce .* in _in_backward", error["message"]
    )


def test_a_rank_that_hangs_in_an_evaluation_is_missing(tmp_path: Path) -> None:
    error = hung(Run(tmp_path), **model("evaluation"), evaluation__every=3)
    assert error["rank"] == 1
    assert re.match(
        r"no progress for [\d.]+ s in phase evaluation after step 3 \(timeouts\.step\): "
        r"rank 1 .* where ranks 0, 2 wait: it is in phase evaluation at .* in _hang",
        error["message"])  # fmt: skip


def test_a_stopped_rank_is_missing_and_shows_its_stacks(tmp_path: Path) -> None:
    run = Run(tmp_path)
    error = hung(run, **model("stopped"))
    assert error["rank"] == 1
    assert re.search(r"rank 1 .* its process was stopped, state T \(stopped\), at .* in _hang",
                     error["message"])  # fmt: skip
    assert "in _hang" in texts(run, "rank-00001.stacks.txt")[0]


def test_a_rank_in_native_code_that_keeps_the_lock_is_missing(tmp_path: Path) -> None:
    run = Run(tmp_path)
    error = hung(run, **model("native"))
    assert (error["rank"], error["host"]) == (1, hanging.HOST)
    assert re.search(r"rank 1 \(node7\) .* Python runs in none of its threads: native code holds "
                     r"the lock at .* in _hang", error["message"])  # fmt: skip
    assert "in _hang" in texts(run, "rank-00001.stacks.txt")[0]


@pytest.mark.case("T31")
def test_the_stacks_of_a_loader_worker_that_hangs_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "Windows", hanging.WorkerHangs)
    run = Run(tmp_path)
    error = hung(run, data__workers=1)
    assert error["rank"] == 1
    assert re.search(
        r"rank 1 .* is missing from .*: it is in phase data at .*; below it: process \d+ \(.*, "
        r"state S \(sleeping\).*\) at .*hanging\.py:\d+ in __getitem__", error["message"],
    )  # fmt: skip
    assert any("in __getitem__" in text for text in texts(run, "rank-00001.below-*.stacks.txt"))


def refuse_reports(run: Run, name: str, step: int) -> None:
    note_pid(run, name, step)
    (run.attempt_dir() / "hangs").touch()


def test_reports_that_cannot_be_written_keep_no_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "HANG_GRACE_S", 4.0)
    run = Run(tmp_path)
    end_of(run, refuse_reports, **model("native"))
    assert run.errors() == []
    assert re.match(r"rank [02] on \S+ made no progress", node.why_hanging(run.attempt_dir()))


def slow_publish(_run: Run, name: str, _step: int) -> None:
    if name == "publish":
        time.sleep(LIMIT_S + 3)  # a disk that is slower than a step may be


@pytest.mark.parametrize("beside", [False, True])
def test_what_is_slow_within_its_limits_goes_on(tmp_path: Path, beside: bool) -> None:
    run = Run(tmp_path)
    outcome = run.finish(
        configuration(num_ranks=2, step_timeout_s=LIMIT_S, steps=4, checkpoint__every_steps=2,
                      checkpoint__asynchronous=beside, **model("slow", step=1)),
        listener=slow_publish,
    )  # fmt: skip
    assert outcome == "done"
    assert not (run.attempt_dir() / "hang").exists()


def test_of_a_single_rank_that_keeps_the_lock_node_py_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "PULSE_S", 1.0)
    monkeypatch.setattr(node, "SILENCE_S", 2.0)
    monkeypatch.setattr(node, "HANG_GRACE_S", 3.0)
    run = Run(tmp_path)
    config = configuration(num_ranks=1, step_timeout_s=2.0, steps=20, **model("native", rank=0))
    helper = NodeSide(run, 1)
    helper.start()
    (end,) = run.start(config, listener=note_pid)
    helper.join()
    assert end.exit_code == -9
    assert helper.fault is not None
    rank, text = helper.fault
    assert rank == 0
    assert re.search(r"Python ran in none of its threads; .*hanging\.py:\d+ in _hang; see ", text)


def first_sheet(folder: Path) -> str:
    config = parse_config(configuration(), "test")
    watch = watchdog.Watchdog(config, Contract(0, 0, 1, 1, folder, folder, folder))
    assert not watch.is_alive()
    return node.sheet_of(os.getpid())


def test_a_rank_has_a_limit_before_its_watchdog_runs(tmp_path: Path) -> None:
    (sheet,) = run_ranks(1, first_sheet, tmp_path)
    beats, limit_s = sheet.splitlines()[0].split()
    assert (int(beats), float(limit_s)) == (1, 60.0)


def record(group: str) -> bytes:
    """What a flight recorder has of one collective that waits, where there is none of NCCL's."""
    entry = {
        "is_p2p": False, "process_group": (group, ""), "collective_seq_id": 1, "retired": False,
        "profiling_name": f"{group}:all_reduce", "input_sizes": [[4]], "thread_id": "1",
    }  # fmt: skip
    return pickle.dumps({"entries": [entry]})


def hang_of(backend: str, root: Path) -> None:
    from torch._C import _distributed_c10d as torch_c

    torch_c._dump_nccl_trace = lambda *_: record("nccl")  # type: ignore[attr-defined]
    torch_c._dump_fr_trace = lambda *_: record("gloo")  # type: ignore[attr-defined]
    changes = {"device": "cuda", "backend": backend, "network__debug": "warn"}
    config = parse_config(configuration(**changes), "test")
    contract = Contract(0, 0, 1, 1, root, root, root)
    with kept(config, contract):
        pass
    watchdog.Watchdog(config, contract)._end()


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_the_collectives_of_nccl_are_told_and_those_of_gloo_beside_it(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "REPORTS_S", 0.0)
    end_ranks(1, hang_of, backend, tmp_path)
    attempt = tmp_path / "attempts" / "1"
    told = json.loads((attempt / "hangs" / "rank-00000.json").read_bytes())
    assert [group["name"] for group in told["groups"]] == ["nccl", "gloo"]
    for file in (attempt / "hangs" / "flight-00000", attempt / "network" / "flight-rank-0"):
        assert file.read_bytes() == record("nccl")


def test_whoever_has_no_watchdog_yet_is_not_waited_for(tmp_path: Path) -> None:
    for rank, answers in enumerate((True, True, False)):
        node.write_json(tmp_path / f"rank-{rank:05}.process.json", {"answers": answers})
    node.write_json(tmp_path / "rank-00000.json", {})
    assert not have_told(tmp_path, 3)
    node.write_json(tmp_path / "rank-00001.json", {})
    assert have_told(tmp_path, 3)
    assert not have_told(tmp_path, 4)  # a node has not told


@pytest.mark.parametrize(("compiles", "evaluation_s"), [(False, 60), (True, 300)])
def test_each_evaluation_may_be_the_one_that_compiles(compiles: bool, evaluation_s: float) -> None:
    config = configuration(compile=compiles, first_step_timeout_s=300)
    limits = Limits(parse_config(config, "test"))
    assert limits.of(Phase("evaluation", 40), 10).shortest_s == evaluation_s
    assert limits.of(Phase("evaluation", 10), 10).shortest_s == 300
    assert limits.of(Phase("step", 10), 10).shortest_s == 300
    assert limits.of(Phase("step", 40), 10).shortest_s == 60
