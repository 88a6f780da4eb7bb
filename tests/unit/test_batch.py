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
from trainer.batch import decide

BATCH = Path(batch.__file__)


def run(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """batch.py as the script runs it: the standard library alone."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(BATCH), *argv],
        capture_output=True, text=True, env={**os.environ, **environ}, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("code", "failed", "requeued", "again"),
    [
        (0, 0, 0, False),
        (78, 0, 0, False),
        (1, 0, 0, True),
        (1, 2, 9, True),
        (1, 3, 0, False),
        (79, 2, 9, True),
        (79, 3, 0, False),
        (143, 3, 0, False),
        (75, 9, 0, True),
        (75, 0, 1, True),
        (75, 0, 2, False),
    ],
)
def test_the_two_budgets(code: int, failed: int, requeued: int, again: bool) -> None:
    decided, why = decide(code, failed, requeued, failures=3, requeues=2)
    assert decided is again, why


def claim(run_dir: Path, number: int, job: str, code: int | None) -> None:
    folder = run_dir / "attempts" / str(number)
    folder.mkdir(parents=True)
    (folder / "owner.json").write_text(json.dumps({"job": job}))
    if code is not None:
        (folder / "end.json").write_text(json.dumps({"code": code}))


def restart(run_dir: Path, ident: str, code: int) -> None:
    """What the script notes before it asks for a restart."""
    with (run_dir / "slurm-requeues").open("a") as file:
        file.write(f"{ident} {code}\n")


def decision(run_dir: Path, ident: str, code: int, requeues: int = 9, deadline_s: int = 0) -> str:
    """The answer for a job that may fail three times."""
    argv = (str(run_dir), ident, str(code), "3", str(requeues), str(deadline_s))
    result = run("next", *argv)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_what_the_nodes_agreed_on_wins_over_sruns_code(tmp_path: Path) -> None:
    claim(tmp_path, 1, "7.0", 75)
    assert decision(tmp_path, "7.0", 143, requeues=1) == "again 75"
    restart(tmp_path, "7.0", 75)
    claim(tmp_path, 2, "7.1", 75)
    assert decision(tmp_path, "7.1", 143, requeues=1) == "end 75"


def test_a_restart_by_slurm_itself_is_no_failure(tmp_path: Path) -> None:
    """As after a lost node: those that were left ended with 1, and no line was written."""
    for number in range(5):
        claim(tmp_path, number + 1, f"7.{number}", 1)
    assert decision(tmp_path, "7.4", 1) == "again 1"
    for number in range(1, 4):
        restart(tmp_path, f"7.{number}", 1)
    assert decision(tmp_path, "7.4", 1) == "end 1"


def test_a_failure_before_any_attempt_counts(tmp_path: Path) -> None:
    for number in range(3):
        assert decision(tmp_path, f"7.{number}", 1) == "again 1"
        restart(tmp_path, f"7.{number}", 1)
    assert decision(tmp_path, "7.3", 1) == "end 1"


def test_restarts_of_another_job_or_of_the_same_attempt_do_not_count(tmp_path: Path) -> None:
    for ident in ("17.0", "17.1", "17.2", "70.3", "7.0", "7.0", "7.0"):
        restart(tmp_path, ident, 1)
    assert decision(tmp_path, "7.1", 1) == "again 1"


def test_no_new_attempt_after_the_deadline(tmp_path: Path) -> None:
    claim(tmp_path, 1, "6.0", 1)
    claim(tmp_path, 2, "7.0", 1)
    os.utime(tmp_path / "attempts/1/owner.json", (0, 0))
    assert decision(tmp_path, "7.1", 1, deadline_s=3600) == "again 1", "7 began just now"
    assert decision(tmp_path, "6.1", 1, deadline_s=3600) == "end 1"
    assert decision(tmp_path, "6.1", 1) == "again 1"


def test_one_node_meets_itself_on_loopback() -> None:
    address, port = run("head", "7.0", "localhost").stdout.split()
    assert address == "127.0.0.1"
    assert int(port) in batch.PORTS


@pytest.mark.case("L05")
def test_a_loopback_address_is_refused_with_the_nodes_name() -> None:
    result = run("head", "7.0", "127.0.1.1", "::1", "no-such-name.invalid")
    assert result.returncode == 1
    assert result.stdout == ""
    assert socket.gethostname() in result.stderr
    assert "/etc/hosts" in result.stderr


@pytest.mark.case("L08")
@pytest.mark.parametrize(
    ("address", "routable"),
    [
        ("10.0.0.1", True),
        ("169.254.3.4", True),
        ("fd77::11", True),
        ("127.0.1.1", False),
        ("::1", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
    ],
)
def test_addresses_that_others_can_reach(address: str, routable: bool) -> None:
    assert batch.is_routable(address) is routable


def test_a_port_that_is_taken_is_not_chosen() -> None:
    port = batch.free_port("127.0.0.1", "seed")
    assert batch.free_port("127.0.0.1", "seed") == port
    with socket.create_server(("127.0.0.1", port)):
        assert batch.free_port("127.0.0.1", "seed") != port
