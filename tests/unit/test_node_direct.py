"""node.py --direct: one for each rank, as srun starts them, with no torchrun between."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from running import PROGRAMS, Nodes, rank_process, read, wait_for_end
from trainer import node


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Nodes]:
    """Four ranks on two nodes."""
    for name in ("run", "work"):
        (tmp_path / name).mkdir()
    made = Nodes(tmp_path / "run", tmp_path / "work", nnodes=4, nproc=1, direct=True)
    yield made
    made.close()


def start(ranks: Nodes, command: list[str]) -> subprocess.Popen[bytes]:
    """Start node 0 by another command than the usual one."""
    with ranks.log(0).open("ab") as log:
        environment = os.environ | {"LOCAL_NUMBER": "0"}
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def end(ranks: Nodes) -> tuple[object, ...]:
    content = read(ranks.run_dir / "attempts/1/end.json")
    return tuple(content[key] for key in ("code", "node", "rank"))


def reason(ranks: Nodes) -> str:
    return str(read(ranks.run_dir / "attempts/1/end.json")["reason"])


def test_ranks_run_to_their_end(ranks: Nodes) -> None:
    ranks.start(0, 1, 2, 3)
    assert ranks.codes() == dict.fromkeys(range(4), 0), ranks.all_logs()
    assert end(ranks) == (0, None, None)
    logs = sorted((ranks.run_dir / "attempts/1/logs").iterdir())
    assert [log.read_text() for log in logs] == [
        f"rank {rank} of 4 in {ranks.workdir}\n" for rank in range(4)
    ]


def test_a_rank_has_the_variables_of_torchrun(
    ranks: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TORCHELASTIC_USE_AGENT_STORE", "MASTER_PORT", "ROLE_RANK"):
        monkeypatch.setenv(name, "stale")
    ranks.mode = "wait"
    ranks.start(0, 1, 2, 3)
    ranks.wait_ready()
    pid = rank_process(ranks.started[3].pid, 3).pid
    raw = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    variables = dict(item.decode().split("=", 1) for item in raw if item)
    expected = {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1", "NODE_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
    }  # fmt: skip
    assert {name: variables[name] for name in expected} == expected
    assert "stale" not in variables.values()
    assert 20000 <= int(variables["MASTER_PORT"]) < 30000
    assert "ORCHESTRATE_AGENT_PID" not in variables


@pytest.mark.parametrize("by", ["file", "SIGUSR1"])
def test_a_drain_leaves_with_75(ranks: Nodes, by: str) -> None:
    ranks.mode = "wait"
    ranks.start(0, 1, 2, 3)
    ranks.wait_ready()
    tree = ranks.tree()
    if by == "file":
        (ranks.run_dir / "attempts/1/drain").touch()
    else:
        ranks.started[2].send_signal(signal.Signals[by])
    assert ranks.codes() == dict.fromkeys(range(4), 75), ranks.all_logs()
    wait_for_end(tree)


def test_a_killed_rank_ends_the_attempt_and_is_named(ranks: Nodes) -> None:
    ranks.mode = "wait"
    ranks.start(0, 1, 2, 3)
    ranks.wait_ready()
    tree = ranks.tree()
    rank_process(ranks.started[2].pid, 2).send(signal.SIGKILL)
    assert ranks.codes() == dict.fromkeys(range(4), 1)
    wait_for_end(tree)
    assert end(ranks) == (1, 1, 2)
    assert reason(ranks).startswith("rank 2 on node 1 (")
    assert reason(ranks).endswith("it was killed by signal 9 (SIGKILL)")


def test_a_rank_whose_launcher_is_killed_ends(ranks: Nodes) -> None:
    ranks.mode = "wait-plain"
    ranks.start(0, 1, 2, 3)
    ranks.wait_ready()
    tree = ranks.tree()
    ranks.started[3].kill()
    assert ranks.codes() == {0: 1, 1: 1, 2: 1, 3: -9}
    wait_for_end(tree)
    assert end(ranks) == (1, 1, None)


def test_a_configuration_error_leaves_with_78(ranks: Nodes) -> None:
    ranks.mode = "configuration"
    ranks.start(0, 1, 2, 3)
    assert ranks.codes() == dict.fromkeys(range(4), 78)
    assert end(ranks) == (78, 0, 1)


def test_the_rank_that_does_not_drain_is_named(ranks: Nodes) -> None:
    ranks.mode = "stubborn=2"
    ranks.start(0, 1, 2, 3, shutdown_timeout_s=1)
    ranks.wait_ready()
    for started in ranks.started.values():
        started.terminate()
    assert ranks.codes() == dict.fromkeys(range(4), 1)
    assert end(ranks) == (1, 1, 2)
    assert "not drained within 1 s of SIGTERM" in reason(ranks)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nproc_per_node": 2}, "--direct needs --nproc-per-node 1"),
        ({"nnodes": 3}, "not 3 ranks at 2 per node"),
        ({"node_rank": 1}, "rank 1 is number 0 on its node of 2 ranks"),
        ({"local_rank_from": "NO_SUCH_VARIABLE"}, "$NO_SUCH_VARIABLE is '' here"),
    ],
)
def test_arguments_are_checked(ranks: Nodes, changes: dict[str, object], words: str) -> None:
    command = ranks.command(0)
    for name, value in changes.items():
        command[command.index(f"--{name.replace('_', '-')}") + 1] = str(value)
    ranks.started[0] = start(ranks, command)
    assert ranks.codes() == {0: 78}
    assert words in ranks.log(0).read_text()


def test_its_options_need_it(ranks: Nodes) -> None:
    ranks.started[0] = start(ranks, [k for k in ranks.command(0) if k != "--direct"])
    assert ranks.codes() == {0: 78}
    assert "need --direct" in ranks.log(0).read_text()


@pytest.mark.e2e
def test_a_real_process_group(ranks: Nodes) -> None:
    pytest.importorskip("torch")
    ranks.program = (sys.executable, str(PROGRAMS / "group.py"))
    ranks.start(0, 1, 2, 3)
    assert ranks.codes() == dict.fromkeys(range(4), 0), ranks.all_logs()
    log = ranks.run_dir / "attempts/1/logs/rank-00003.log"
    assert "the ranks add up to 6" in log.read_text()


@pytest.mark.parametrize(("nnodes", "fault"), [(2, ""), (4, "127.0.0.1 is a loopback address")])
def test_the_ranks_of_one_node_may_meet_at_a_loopback_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nnodes: int, fault: str
) -> None:
    monkeypatch.setenv("LOCAL_NUMBER", "1")
    command = Nodes(tmp_path, tmp_path, nnodes=nnodes, nproc=1, direct=True).command(1)
    words = [word for word in command[2:] if word != "--allow-loopback"]
    with pytest.raises(node.Leave, match=fault) if fault else contextlib.nullcontext():
        node.parse(words)
