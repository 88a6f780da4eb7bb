"""node.py with real processes: roll call, ends, codes, and that nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from running import NODE_PY, Nodes, rank_process, read, wait_for_end, wait_until


@pytest.fixture(params=["plain", 'a b\'; echo "x"\n$HOME k=v,w'])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with an ordinary and with a hostile name."""
    path = tmp_path / str(request.param)
    path.mkdir()
    return path


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = make_nodes(tmp_path)
    yield made
    made.close()


def make_nodes(folder: Path) -> Nodes:
    run_dir, workdir = folder / "run", folder / "work"
    run_dir.mkdir()
    workdir.mkdir()
    return Nodes(run_dir, workdir)


@pytest.mark.case("L01")
def test_two_nodes_run_a_program_to_its_end(folder: Path) -> None:
    nodes = make_nodes(folder)
    nodes.start(1, 0)
    try:
        assert nodes.codes() == {0: 0, 1: 0}, nodes.all_logs()
    finally:
        nodes.close()
    attempt = nodes.run_dir / "attempts" / "1"
    assert read(attempt / "end.json") == {
        "version": 1, "code": 0, "reason": "done", "detail": "", "node": None, "rank": None,
    }  # fmt: skip
    assert read(attempt / "owner.json")["job"] == "job-1"
    logs = sorted((attempt / "logs").iterdir())
    assert [log.name for log in logs] == [f"rank-0000{rank}.log" for rank in range(4)]
    assert logs[3].read_text() == f"rank 3 of 4 in {nodes.workdir}\n"


@pytest.mark.parametrize("with_loopback_names", [False, True])
def test_ranks_see_the_contract_and_no_outer_launcher(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, with_loopback_names: bool
) -> None:
    for name in ("PET_NNODES", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "WORLD_SIZE", "ROLE_NAME"):
        monkeypatch.setenv(name, "stale")
    for name in ("ROLE_ARN", "GROUP_OF_THE_USER"):
        monkeypatch.setenv(name, "kept")
    monkeypatch.delenv("ORCHESTRATE_CRDS", raising=False)  # of whoever runs these tests
    nodes.nnodes, nodes.mode = 1, "wait"
    nodes.start(0, **({"head": "localhost", "address": "localhost"} if with_loopback_names else {}))
    nodes.wait_ready()
    process = rank_process(nodes.started[0].pid, 1)
    raw = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    variables = dict(item.decode().split("=", 1) for item in raw if item)
    run_dir = str(nodes.run_dir)
    expected = {
        "ORCHESTRATE_RUN_DIR": run_dir,
        "ORCHESTRATE_ATTEMPT": "1",
        "ORCHESTRATE_CHECKPOINT_DIR": f"{run_dir}/checkpoints",
        "ORCHESTRATE_WORKDIR": str(nodes.workdir),
    }
    assert {k: v for k, v in variables.items() if k.startswith("ORCHESTRATE_")} == expected
    assert "stale" not in variables.values()
    assert variables["ROLE_ARN"] == variables["GROUP_OF_THE_USER"] == "kept"
    assert 20000 <= int(variables["MASTER_PORT"]) < 30000


def test_missing_nodes_are_named(nodes: Nodes) -> None:
    nodes.nnodes = 4
    nodes.start(0, 2, start_timeout_s=2)
    assert nodes.codes() == {0: 1, 2: 1}
    for node in (0, 2):
        text = nodes.log(node).read_text()
        assert "node 1, 3 of 4 did not report within 2 s; here: node 0 (" in text
    assert not (nodes.run_dir / "attempts").exists()


def test_a_node_of_another_job_is_refused(nodes: Nodes) -> None:
    nodes.start(0)
    nodes.start(1, id="job-2")
    assert nodes.started[1].wait(timeout=60) == 1
    assert "refused this node: it belongs to another job" in nodes.log(1).read_text()
    nodes.start(1)
    assert nodes.codes() == {0: 0, 1: 0}


def test_a_rank_that_is_taken_is_refused(nodes: Nodes) -> None:
    nodes.nnodes = 3
    nodes.start(0, 1)
    wait_until(lambda: listening(nodes), "node 0 listens")
    second = Nodes(nodes.run_dir, nodes.workdir, nnodes=3, port=nodes.port)
    # Whichever of the two comes first stays, the other is told why not.
    second.start(1)
    both = [nodes.started[1], second.started[1]]
    wait_until(lambda: any(p.poll() is not None for p in both), "one of them is refused")
    assert "node rank 1 has been taken by" in nodes.log(1).read_text()
    nodes.start(2)
    codes = [p.wait(timeout=60) for p in (*both, nodes.started[0], nodes.started[2])]
    assert sorted(codes) == [0, 0, 0, 1]


def listening(nodes: Nodes) -> bool:
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    # proc(5): local address, remote address, state; 0A is listening
    return any(k[1].endswith(f":{nodes.port:04X}") and k[3] == "0A" for k in lines)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nproc_per_node": 3}, "nproc is 3 there and 2 on node 0"),
        ({"nnodes": 3}, "nnodes is 3 there and 2 on node 0"),
    ],
)
def test_a_node_of_another_shape_is_refused(
    nodes: Nodes, change: dict[str, int], words: str
) -> None:
    nodes.start(0, start_timeout_s=4)
    nodes.start(1, **change)
    assert nodes.codes() == {0: 1, 1: 1}
    assert words in nodes.log(1).read_text()
    assert words in nodes.log(0).read_text().splitlines()[-1]


def test_strangers_at_the_port_do_no_harm(nodes: Nodes) -> None:
    import socket

    nodes.start(0)
    wait_until(lambda: listening(nodes), "node 0 listens")
    words = (
        b"GET / HTTP/1.1\r\n\r\n",
        b"[1]\n",
        b"{}\n",
        b"x" * 200_000,
        b"[" * 60000 + b"\n",
        b"",
    )
    strangers = [socket.create_connection(("127.0.0.1", nodes.port)) for _ in words]
    try:
        for stranger, word in zip(strangers, words, strict=True):
            try:
                stranger.sendall(word)
            except (BrokenPipeError, ConnectionResetError):
                assert len(word) > 65536  # cut off in the middle
        nodes.start(1)
        assert nodes.codes() == {0: 0, 1: 0}, nodes.all_logs()
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_finished_run_starts_nothing(nodes: Nodes) -> None:
    (nodes.run_dir / "DONE").touch()
    nodes.start(0, 1)
    assert nodes.codes() == {0: 0, 1: 0}
    assert not (nodes.run_dir / "attempts").exists()


def test_attempts_count_without_gaps(nodes: Nodes) -> None:
    nodes.mode, nodes.nnodes = "silent", 1
    for _ in range(3):
        nodes.start(0)
        assert nodes.codes() == {0: 1}
    assert sorted(os.listdir(nodes.run_dir / "attempts")) == ["1", "2", "3"]
    assert "left no outcome.json" in read(nodes.run_dir / "attempts/3/end.json")["reason"]


@pytest.mark.parametrize("by", ["file", "SIGTERM", "SIGUSR1", "SIGINT"])
@pytest.mark.case("L13")
def test_a_drain_leaves_with_75_on_all_nodes(nodes: Nodes, by: str) -> None:
    nodes.mode = "wait"
    nodes.start(0, 1)
    nodes.wait_ready()
    tree = nodes.tree()
    if by == "file":
        (nodes.run_dir / "attempts/1/drain").touch()
    else:
        nodes.started[1].send_signal(signal.Signals[by])
    assert nodes.codes() == {0: 75, 1: 75}, nodes.all_logs()
    wait_for_end(tree)
    assert read(nodes.run_dir / "attempts/1/end.json")["code"] == 75


def test_a_drain_of_a_run_that_finishes_is_done(nodes: Nodes) -> None:
    nodes.mode = "finish"
    nodes.start(0, 1)
    nodes.wait_ready()
    nodes.started[0].terminate()
    assert nodes.codes() == {0: 0, 1: 0}


def test_a_signal_in_the_roll_call_leaves_with_75(nodes: Nodes) -> None:
    nodes.start(0)
    wait_until(lambda: listening(nodes), "node 0 listens")
    nodes.started[0].terminate()
    assert nodes.codes() == {0: 75}


@pytest.mark.case("L21")
def test_what_does_not_drain_is_ended(nodes: Nodes) -> None:
    nodes.mode = "stubborn"
    nodes.start(0, 1, shutdown_timeout_s=1)
    nodes.wait_ready()
    tree = nodes.tree()
    nodes.started[0].terminate()
    assert nodes.codes() == {0: 1, 1: 1}
    wait_for_end(tree)
    reason = read(nodes.run_dir / "attempts/1/end.json")["reason"]
    assert "not drained within 1 s of " in reason
    assert "killed; steps since the last checkpoint are lost; not stopped: rank " in reason


def test_the_rank_that_does_not_drain_is_named(nodes: Nodes) -> None:
    nodes.mode = "stubborn=2"
    nodes.start(0, 1, shutdown_timeout_s=1)
    nodes.wait_ready()
    for node in (0, 1):
        nodes.started[node].terminate()
    assert nodes.codes() == {0: 1, 1: 1}
    end = read(nodes.run_dir / "attempts/1/end.json")
    assert (end["code"], end["node"], end["rank"]) == (1, 1, 2)
    assert "not drained within 1 s of SIGTERM" in end["reason"]
    assert end["reason"].endswith("not stopped: rank 2")


def test_of_a_long_message_the_reason_is_the_first_line(nodes: Nodes) -> None:
    nodes.mode = "verbose"
    nodes.start(0, 1)
    assert nodes.codes() == {0: 78, 1: 78}
    end = read(nodes.run_dir / "attempts/1/end.json")
    assert end["reason"].endswith("): no data in the folder")
    assert end["detail"].startswith("line 1 ")
    assert end["detail"].splitlines()[-2].endswith("end of line")
    assert end["detail"].splitlines()[-1] == "..."


def test_a_configuration_error_leaves_with_78(nodes: Nodes) -> None:
    nodes.mode = "configuration"
    nodes.start(0, 1)
    assert nodes.codes() == {0: 78, 1: 78}
    end = read(nodes.run_dir / "attempts/1/end.json")
    assert (end["code"], end["node"], end["rank"]) == (78, 0, 1)
    assert "no data" in end["reason"]


@pytest.mark.parametrize("rank", [0, 2, 3])
@pytest.mark.case("L20")
def test_a_killed_rank_ends_the_attempt_and_is_named(nodes: Nodes, rank: int) -> None:
    nodes.mode = "wait"
    nodes.start(0, 1, shutdown_timeout_s=1)
    nodes.wait_ready()
    tree = nodes.tree()
    rank_process(nodes.started[rank // 2].pid, rank).send(signal.SIGKILL)
    assert nodes.codes() == {0: 1, 1: 1}
    wait_for_end(tree)
    end = read(nodes.run_dir / "attempts/1/end.json")
    assert (end["code"], end["node"], end["rank"]) == (1, rank // 2, rank)


@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_agent_ends_the_attempt(nodes: Nodes, node: int) -> None:
    nodes.mode = "wait"
    nodes.start(0, 1, shutdown_timeout_s=1)
    nodes.wait_ready()
    tree = nodes.tree()
    agent_process(nodes.started[node].pid)
    assert nodes.codes() == {0: 1, 1: 1}
    wait_for_end(tree)
    end = read(nodes.run_dir / "attempts/1/end.json")
    assert (end["node"], end["rank"]) == (node, None)
    assert end["reason"].endswith("torchrun was killed by signal 9 (SIGKILL)")


def agent_process(node_pid: int) -> None:
    (agent,) = [
        int(p) for p in Path(f"/proc/{node_pid}/task/{node_pid}/children").read_text().split()
    ]
    os.kill(agent, signal.SIGKILL)


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.case("L12")
def test_a_killed_node_ends_the_attempt_everywhere(nodes: Nodes, node: int) -> None:
    nodes.mode = "wait-plain"  # a killed node cannot end what ranks have started; see test_local
    nodes.start(0, 1, shutdown_timeout_s=1)
    nodes.wait_ready()
    tree = nodes.tree()
    nodes.started[node].kill()
    codes = nodes.codes()
    assert codes == {node: -9, 1 - node: 1}
    wait_for_end(tree)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nnodes": 0}, "no such place"),
        ({"node_rank": 2}, "no such place"),
        ({"port": 0}, "--port must be"),
        ({"shutdown_timeout_s": 0}, "timeouts above 0 s"),
        ({"run_dir": "relative"}, "absolute"),
        ({"port": "x"}, "invalid int value"),
    ],
)
def test_arguments_are_checked(nodes: Nodes, changes: dict[str, object], words: str) -> None:
    nodes.start(0, **changes)
    assert nodes.codes() == {0: 78}
    text = nodes.log(0).read_text()
    assert words in text
    assert "Traceback" not in text


@pytest.mark.case("L05")
def test_loopback_is_refused_where_other_machines_must_reach_it(nodes: Nodes) -> None:
    command = [part for part in nodes.command(0) if part != "--allow-loopback"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 78
    assert "127.0.0.1 is a loopback address" in result.stderr


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
def test_ipv6(nodes: Nodes) -> None:
    nodes.start(0, 1, head="::1", address="::1")
    assert nodes.codes() == {0: 0, 1: 0}, nodes.all_logs()


def test_a_run_folder_that_cannot_be_used_is_reported_in_words(nodes: Nodes) -> None:
    (nodes.run_dir / "attempts").touch()
    nodes.start(0, 1)
    assert nodes.codes() == {0: 1, 1: 1}
    assert "attempts" in nodes.log(0).read_text()
    assert "Traceback" not in nodes.log(0).read_text()


def test_a_program_that_is_not_there_is_a_configuration_error(nodes: Nodes) -> None:
    nodes.nnodes = nodes.nproc = 1
    command = nodes.command(0)
    command = [*command[: command.index("--") + 1], "/no such/program"]
    environment = os.environ | {"PYTHONPATH": str(NODE_PY.parents[1] / "tests" / "programs")}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 78, result.stderr
    assert "'/no such/program'" in read(nodes.run_dir / "attempts/1/end.json")["reason"]


def test_output_is_echoed_behind_its_rank(nodes: Nodes) -> None:
    nodes.nnodes = 1
    command = nodes.command(0)
    command.insert(command.index("--"), "--echo")
    environment = os.environ | {"PYTHONPATH": str(NODE_PY.parents[1] / "tests" / "programs")}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    lines = [line for line in result.stdout.splitlines() if line.startswith("[rank 1 ")]
    assert [line.partition("] ")[2] for line in lines] == [f"rank 1 of 2 in {nodes.workdir}"]


@pytest.mark.e2e
def test_the_real_torchrun(nodes: Nodes) -> None:
    pytest.importorskip("torch")
    nodes.agent = "torch.distributed.run"
    (nodes.workdir / "torch.py").write_text("raise SystemExit('the user folder won')")
    nodes.start(0, 1)
    assert nodes.codes() == {0: 0, 1: 0}, nodes.all_logs()
    logs = [nodes.run_dir / f"attempts/1/logs/rank-0000{rank}.log" for rank in range(4)]
    assert [log.read_text().split()[1] for log in logs] == ["0", "1", "2", "3"]


def test_it_needs_the_standard_library_alone() -> None:
    code = f"import runpy; runpy.run_path({str(NODE_PY)!r}, run_name='x')"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
