"""Commands on runs that stand in a folder: what is read, shown, followed and stopped."""

from __future__ import annotations

import errno
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from orchestrator.backends import processes, runstore
from orchestrator.backends.base import Handle, State, Status
from orchestrator.backends.local import LocalBackend
from orchestrator.backends.record import Record
from orchestrator.cli import follow
from orchestrator.cli.common import statuses_of
from orchestrator.cli.watch import watch_run
from running import wait_until

Cli = Callable[..., tuple[int, str, str]]
MAIN = "import sys; from orchestrator.cli import main; main(sys.argv[1:])"

JOB = """\
name: good
train:
  model: {preset: nano}
  data: {synthetic: {samples: 64}}
  steps: 5
"""


def make_run(root: Path, name: str, metrics: str = "", log: bytes = b"") -> Path:
    """A run folder of the local backend, as its receipt says, with one rank's log."""
    run_dir = root / "runs" / name
    logs = run_dir / "attempts" / "1" / "logs"
    logs.mkdir(parents=True)
    (run_dir / "receipt.json").write_text(json.dumps({"version": 1, "backend": "local"}))
    (run_dir / "metrics.jsonl").write_text(metrics)
    (logs / "rank-00000.log").write_bytes(log)
    return run_dir


def record(run_dir: Path, state: str, reason: str = "", pid: int | None = None) -> None:
    """Write what a supervisor would: it is this process, or the one with `pid`."""
    process = processes.find(pid or os.getpid())
    assert process is not None
    one = Record(process.pid, process.start_time, processes.boot_id(), "here", state, 1, reason)
    one.write(run_dir)


@pytest.mark.parametrize("more", [(), ("-f",)])
def test_logs_of_more_than_one_chunk_are_whole(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.setattr(runstore, "READ_LIMIT_BYTES", 1000)
    lines = [f"line {number}" for number in range(1000)]
    record(make_run(tmp_path, "long", log="\n".join(lines).encode()), "DONE")
    code, out, _ = cli("logs", "long", *more)
    assert code == 0
    assert out.splitlines() == [f"[1] rank 0 | {line}" for line in lines]


@pytest.mark.parametrize("argv", [("watch", "lost"), ("logs", "lost", "-f")])
def test_a_run_whose_state_stays_unknown_is_not_followed_for_ever(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]
) -> None:
    monkeypatch.setattr(follow, "UNKNOWN_LIMIT", 2)
    make_run(tmp_path, "lost", log=b"the last words\n")
    code, out, err = cli(*argv)
    assert code == 1
    assert "UNKNOWN (it has no supervisor.json" in out + err
    assert ("the last words" in out) == (argv[0] == "logs")


HOSTILE = b"a\x1b[2Jb\xc2\x9b\xff\r\n"


def test_logs_reach_a_pipe_as_they_are(cli: Cli, tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, "hostile", log=HOSTILE)
    record(run_dir, "DONE")
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "logs", "hostile"],
        cwd=tmp_path, capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout == b"[1] rank 0 | " + HOSTILE


def on_terminal(tmp_path: Path, *argv: str) -> bytes:
    """What a command writes to its terminal."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, *argv],
        cwd=tmp_path, stdin=follower, stdout=follower, stderr=follower,
    ) as process:  # fmt: skip
        os.close(follower)
        written = b""
        try:
            while chunk := os.read(leader, 4096):
                written += chunk
        except OSError:  # Linux: EIO once nobody has the other end any more
            pass
        assert process.wait(30) == 0
    os.close(leader)
    return written


def test_logs_cannot_steer_a_terminal(tmp_path: Path) -> None:
    record(make_run(tmp_path, "hostile", log=HOSTILE), "DONE")
    written = on_terminal(tmp_path, "logs", "hostile").decode()
    assert written == "[1] rank 0 | a?[2Jb?\N{REPLACEMENT CHARACTER}\r\n"


def test_a_watched_run_cannot_steer_a_terminal(tmp_path: Path) -> None:
    metrics = '{"event": "sample", "text": "a\\u001b]0;x\\u0007"}\n{"step": 1, "loss": null}\n'
    record(make_run(tmp_path, "hostile", metrics), "DONE", "end\x1b]0;y\x07\nmore")
    written = on_terminal(tmp_path, "watch", "hostile")
    assert b"a?]0;x?" in written
    assert b"DONE (end?]0;y?)" in written
    assert b"\x1b]0;" not in written


def test_a_table_shows_the_first_line_of_a_reason(cli: Cli, tmp_path: Path) -> None:
    record(make_run(tmp_path, "one"), "FAILED", "rank 1: \x1b[31mbad\nTraceback:\n  much more")
    code, out, _ = cli("status", "one")
    assert code == 0
    assert out.splitlines()[1].endswith("rank 1: ?[31mbad")
    assert len(out.splitlines()) == 2


@pytest.mark.parametrize("line", ["[]", '{"step": null}', '{"event": "start"}', '{"loss": "x"}'])
def test_watch_bears_any_metrics_line(cli: Cli, tmp_path: Path, line: str) -> None:
    record(make_run(tmp_path, "odd", line + "\n"), "DONE")
    assert cli("watch", "odd")[0] == 0


def validation(step: int, loss: float) -> str:
    return json.dumps({"event": "validation", "step": step, "loss": loss}) + "\n"


class Continues(LocalBackend):
    """The local backend with a run that goes on once it has been looked at."""

    def status(self, handles: Sequence[Handle]) -> list[Status]:
        statuses = super().status(handles)
        (handle,) = handles
        with (handle.run_dir / "metrics.jsonl").open("a") as metrics:
            metrics.write(validation(9, 1.5))
        record(handle.run_dir, "DONE")
        return statuses


def test_what_a_submit_continues_is_not_told_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = make_run(tmp_path, "again", validation(0, 5.5) + '{"step": 4, "loss": 2}\n')
    record(run_dir, "RUNNING")
    backend = Continues()
    assert watch_run(backend, backend.handle(run_dir), only_new=True) == 0
    out = capfd.readouterr().out
    assert "step      4" not in out
    assert out.count("5.5000") == 1  # as what was before
    assert "step      9  validation loss 1.5000" in out
    assert "validation loss before  5.5000" in out


def test_a_second_submit_of_a_finished_run_tells_its_end_alone(cli: Cli, tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, "good", validation(0, 5.5) + validation(9, 1.5))
    record(run_dir, "DONE")
    (run_dir / "DONE").touch()
    (tmp_path / "job.yaml").write_text(JOB)
    code, out, _ = cli("submit", "job.yaml", "--watch")
    assert code == 0
    assert "validation loss after   1.5000" in out
    assert "step " not in out


def test_metrics_that_cannot_be_read_are_one_line(cli: Cli, tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, "broken")
    record(run_dir, "DONE")
    (run_dir / "metrics.jsonl").unlink()
    (run_dir / "metrics.jsonl").mkdir()
    code, _, err = cli("watch", "broken")
    assert (code, len(err.splitlines())) == (1, 1)
    assert "metrics.jsonl: Is a directory" in err


class OneUnreadable(LocalBackend):
    """The local backend as a user has it who may not read the run `bad`; root may read all."""

    def status(self, handles: Sequence[Handle]) -> list[Status]:
        if any(handle.run == "bad" for handle in handles):
            raise PermissionError(errno.EACCES, "Permission denied", "/runs/bad/attempts")
        return super().status(handles)


def test_one_run_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    backend = OneUnreadable()
    for name in ("bad", "good"):
        record(make_run(tmp_path, name), "DONE")
    bad, good = statuses_of(backend, backend.list(tmp_path / "runs"))
    assert (good.run, good.state) == ("good", State.DONE)
    assert (bad.run, bad.state) == ("bad", State.UNKNOWN)
    assert bad.reason == "/runs/bad/attempts: Permission denied"


def test_status_as_json_names_the_run_folder(cli: Cli, tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, "good")
    record(run_dir, "DONE")
    for argv in (("list",), ("status", "good")):
        (good,) = json.loads(cli(*argv, "--json")[1])
        assert (good["run"], good["state"], good["run_dir"]) == ("good", "DONE", str(run_dir))


def test_list_shows_what_fresh_put_aside_only_if_asked(cli: Cli, tmp_path: Path) -> None:
    for name in ("demo", "demo.old-1", "demo.old-12"):
        record(make_run(tmp_path, name), "DONE")
    assert [run["run"] for run in json.loads(cli("list", "--json")[1])] == ["demo"]
    assert len(json.loads(cli("list", "--all", "--json")[1])) == 3


# Ends only once the other one has been asked as well.
STOPS = """
import os, signal, sys, time
me, other = sys.argv[1:]
def asked(*_):
    open(me, "w").close()
    for _ in range(1000):
        if os.path.exists(other): os._exit(0)
        time.sleep(0.02)
signal.signal(signal.SIGTERM, asked)
open(me + ".ready", "w").close()
signal.pause()
"""


@pytest.fixture
def supervisors(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that run two runs, `a` and `b`, and that only stop together."""
    started = []
    for name, other in ("ab", "ba"):
        run_dir = make_run(tmp_path, name)
        words = [str(tmp_path / f"asked-{name}"), str(tmp_path / f"asked-{other}")]
        process = subprocess.Popen([sys.executable, "-c", STOPS, *words])
        started.append(process)
        wait_until((tmp_path / f"asked-{name}.ready").exists, "the start of a supervisor")
        record(run_dir, "RUNNING", pid=process.pid)
        launch = {"version": 1, "name": name, "num_nodes": 1, "ranks_per_node": 1, "failures": 0,
                  "requeues": 0, "deadline_s": None, "start_timeout_s": 1,
                  "shutdown_timeout_s": 5}  # fmt: skip
        (run_dir / "rendered").mkdir()
        (run_dir / "rendered" / "launch.json").write_text(json.dumps(launch))
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_cancel_asks_all_before_it_waits_and_one_that_fails_stops_no_other(
    cli: Cli, tmp_path: Path, supervisors: list[subprocess.Popen[bytes]]
) -> None:
    broken = make_run(tmp_path, "broken")  # it has no launch.json, so nothing can be awaited
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        record(broken, "RUNNING", pid=sleeper.pid)
        code, out, err = cli("cancel", "broken", "a", "a", "b")
        sleeper.kill()
    assert code == 1
    assert "launch.json" in err
    assert sorted(line[0] for line in out.splitlines()) == ["a", "b"]
    assert [process.wait(30) for process in supervisors] == [0, 0]


def test_ctrl_c_at_logs_says_that_the_run_goes_on(tmp_path: Path) -> None:
    record(make_run(tmp_path, "going", log=b"first\n"), "RUNNING")
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", MAIN, "logs", "going", "-f"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert "first" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert "going goes on" in err
    assert process.returncode == 130
