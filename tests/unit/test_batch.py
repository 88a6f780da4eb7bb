"""What the batch script asks: where to meet, and whether to go on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trainer import batch
from trainer.batch import Attempt, decide

BATCH = Path(batch.__file__)


def run(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """batch.py as the script runs it: the standard library alone."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(BATCH), *argv],
        capture_output=True, text=True, env={**os.environ, **environ}, check=False,
    )  # fmt: skip


def attempts(*codes: int | None, began: float = 1e12) -> list[Attempt]:
    return [Attempt(f"7.{n}", code, began + n) for n, code in enumerate(codes)]


@pytest.mark.parametrize(
    ("code", "earlier", "again"),
    [
        (0, (0,), False),
        (78, (78,), False),
        (1, (1,), True),
        (1, (1, 1, 1), True),
        (1, (1, 1, 1, 1), False),
        (79, (1, 1, 1, 79), False),
        (143, (1, 1, 1, 143), False),
        (75, (75,), True),
        (75, (75, 75), True),
        (75, (75, 75, 75), False),
        (75, (None, None, 75), False),
        (1, (75, None, 75, 1), True),
    ],
)
def test_the_two_budgets(code: int, earlier: tuple[int | None, ...], again: bool) -> None:
    decided, why = decide(code, attempts(*earlier), failures=3, requeues=2, deadline_s=0)
    assert decided is again, why


def test_no_new_attempt_after_the_deadline() -> None:
    assert decide(1, attempts(1, began=0.0), 3, 3, 60) == (False, "the deadline of 60 s is over")
    assert decide(1, attempts(1), 3, 3, 60)[0]


@pytest.mark.parametrize(("restarts", "again"), [("2", True), ("3", False)])
def test_a_failure_before_any_attempt_is_counted_by_slurms_restarts(
    monkeypatch: pytest.MonkeyPatch, restarts: str, again: bool
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    assert decide(1, [], 3, 3, 0)[0] is again


def claim(run_dir: Path, number: int, job: str, code: int | None) -> None:
    folder = run_dir / "attempts" / str(number)
    folder.mkdir(parents=True)
    (folder / "owner.json").write_text(json.dumps({"job": job}))
    if code is not None:
        (folder / "end.json").write_text(json.dumps({"code": code}))


def test_what_the_nodes_agreed_on_wins_over_sruns_code(tmp_path: Path) -> None:
    claim(tmp_path, 1, "7.0", 75)
    result = run("next", str(tmp_path), "7.0", "143", "3", "1", "0")
    assert (result.returncode, result.stdout) == (0, "again 75\n")
    claim(tmp_path, 2, "7.1", 75)
    result = run("next", str(tmp_path), "7.1", "143", "3", "1", "0")
    assert result.stdout == "end 75\n"
    assert "requeue 2 of 1" in result.stderr


def test_attempts_of_another_job_do_not_count(tmp_path: Path) -> None:
    for number in range(1, 6):
        claim(tmp_path, number, f"{number}7.0", 1)
    assert run("next", str(tmp_path), "7.0", "1", "3", "1", "0").stdout == "again 1\n"


def test_one_node_meets_itself_on_loopback() -> None:
    address, port = run("head", "7.0", "localhost").stdout.split()
    assert address == "127.0.0.1"
    assert int(port) in batch.PORTS


def test_a_loopback_address_is_refused_with_the_nodes_name() -> None:
    result = run("head", "7.0", "127.0.1.1", "::1", "no-such-name.invalid")
    assert result.returncode == 1
    assert result.stdout == ""
    assert socket.gethostname() in result.stderr
    assert "/etc/hosts" in result.stderr


def test_a_port_that_is_taken_is_not_chosen() -> None:
    port = batch.free_port("127.0.0.1", "seed")
    assert batch.free_port("127.0.0.1", "seed") == port
    with socket.create_server(("127.0.0.1", port)):
        assert batch.free_port("127.0.0.1", "seed") != port
