"""The network that is used is told after the first step, and compared with what was promised."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nccl_lines import communicator, log, net, p2p

from ranks import Ended, grouped, run_ranks
from runs import Run, configuration
from trainer import library_log
from trainer.config import TrainerConfig, parse_config
from trainer.contract import Contract
from trainer.limits import Limit
from trainer.metrics import Metrics
from trainer.network_proof import Proof, Told, WrongNetwork, judge
from trainer.peers import Peers
from trainer.transports import read_report

RANKS = 2
HERE = Path(__file__).resolve().parent


def start(run: Run, **changes: Any) -> list[Ended]:
    return run.start(configuration(num_ranks=RANKS, steps=2, **changes))


def test_gloo_tells_the_interface_and_the_addresses(tmp_path: Path) -> None:
    """Once an attempt, after the first step; the ranks of the tests talk over lo."""
    run = Run(tmp_path)
    assert {end.value for end in start(run, network__interface="lo")} == {0}
    (event,) = run.events("network")
    assert event["step"] == 1
    assert event["backend"] == "gloo"
    assert (event["interface"], event["addresses"]) == ("lo", ["127.0.0.1"] * RANKS)
    assert event["transports"] == {}  # one node
    assert event["within"]["gloo"] >= RANKS
    assert (event["agrees"], event["faults"], event["unknown"]) == (True, [], None)


def test_another_interface_than_the_named_one_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path)
    assert {end.value for end in start(run, network__interface="fast0")} == {0}
    (event,) = run.events("network")
    assert event["agrees"] is False
    fault = "uses the interface lo (127.0.0.1), not fast0"
    assert [fault in text for text in event["faults"]] == [True] * RANKS
    told = [line for line in capfd.readouterr().err.splitlines() if fault in line]
    assert len(told) == 1
    assert told[0].startswith("trainer: the network is not used as promised: rank 0 on ")


def test_it_stops_the_attempt_as_a_failure_where_that_is_wanted(tmp_path: Path) -> None:
    run = Run(tmp_path)
    ended = start(run, network__interface="fast0", network__watch="stop")
    assert {end.value for end in ended} == {1}
    errors = run.errors()
    assert [error["kind"] for error in errors] == ["failure"] * RANKS
    host = os.uname().nodename
    text = f"rank 0 on {host} uses the interface lo (127.0.0.1), not fast0"
    assert all(text in error["message"] for error in errors)
    assert all("network.watch: warn" in error["message"] for error in errors)
    assert not run.events("end")
    assert run.events("network")


def test_nothing_is_looked_at_where_it_is_off(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert {end.value for end in start(run, network__watch="off")} == {0}
    assert not run.events("network")
    assert not (run.attempt_dir() / "network").exists()


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None,
    reason="needs root, ip and unshare for a network of its own",
)
def test_two_interfaces_are_told_apart(tmp_path: Path) -> None:
    """A network namespace with two of them: the one that gloo was told is the one that is seen,
    though the rendezvous goes over another. Then a second node, where it has another name."""
    script = f"""set -e
    ip link set lo up
    for at in 1 2; do
        ip link add net$at type veth peer name peer$at
        ip link set peer$at up
        ip address add 10.77.$at.1/24 dev net$at
        ip -6 address add fd77:$at::1/64 dev net$at nodad
        ip link set net$at up
    done
    exec {sys.executable} {HERE / "two_interfaces.py"} {tmp_path}
    """
    command = ["unshare", "--net", "sh", "-c", script]
    paths = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=paths
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("this machine allows no network namespace")
    assert done.returncode == 0, done.stderr
    events = [Run(tmp_path / name).events("network")[0] for name in ("net1", "net2")]
    assert [event["agrees"] for event in events] == [False, True]
    assert {event["interface"] for event in events} == {"net2"}
    address = events[1]["addresses"][0]
    assert address in ("10.77.2.1", "fd77:2::1")
    assert f"uses the interface net2 ({address}), not net1" in events[0]["faults"][0]
    (nodes,) = Run(tmp_path / "nodes").events("network")
    assert (nodes["interface"], nodes["agrees"]) == ("net2,peer2", True)
    assert nodes["addresses"] == ["10.77.2.1", "10.77.2.2"]
    assert nodes["transports"]["gloo"] >= RANKS
    assert nodes["within"] == {}


# NCCL itself needs GPUs: its log is written as it writes it, the rest is real.


def of_nccl(lines: dict[int, list[str]], tmp_path: Path, **changes: Any) -> dict[int, Any]:
    """What the look at NCCL's log on two nodes of one rank each comes to, and its files."""
    settings = {
        "network__fabric": "infiniband", "network__promises": ["NET/IB"], **changes
    }  # fmt: skip
    config = parse_config(
        configuration(num_ranks=RANKS, ranks_per_node=1, device="cuda", backend="nccl", **settings),
        "test",
    )
    (tmp_path / "attempts" / "1").mkdir(parents=True)
    return dict(enumerate(run_ranks(RANKS, grouped, _look, config, lines, tmp_path)))


def _look(config: TrainerConfig, lines: dict[int, list[str]], root: Path) -> Any:
    rank = int(os.environ["RANK"])
    contract = Contract(rank, 0, RANKS, 1, root, root / "checkpoints", root, RANKS)
    with library_log.kept(config, contract):
        _write_like_nccl(log(*lines.get(rank, lines[0])))
        proof = Proof(
            config, contract, Peers(Limit(60, "timeouts.load")), Metrics(contract, False, 0)
        )
        try:
            proof.after_step(1)
            proof.after_step(2)
        except WrongNetwork as error:
            return str(error)
    return sorted(path.name for path in contract.network_dir.glob("*.log"))


def _write_like_nccl(text: str) -> None:
    """In C, with a buffer of a line, into a file that stays open."""
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    path = library_log.log_path()
    if path is None:
        return
    file = ctypes.c_void_p(libc.fopen(os.fsencode(path), b"w"))
    libc.setlinebuf(file)
    libc.fputs(text.encode(), file)


GOOD = [communicator(RANKS), net("2.30.7", "IB", gdr=True).replace("3[3] -> 8[0]", "0[0] -> 1[0]")]
BAD = [communicator(RANKS), net("2.30.7", "Socket").replace("3[3] -> 8[0]", "1[0] -> 0[0]")]


def event_in(root: Path) -> dict[str, Any]:
    (event,) = Run(root.parent).events("network")
    return event


def test_nccl_agrees_and_its_log_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "run"
    assert of_nccl({0: GOOD}, root) == {0: [], 1: []}
    assert not (root / "attempts" / "1" / "network").exists()
    event = event_in(root)
    assert event["transports"] == {"NET/IB/GDRDMA": RANKS}
    assert (event["promised"], event["agrees"]) == (["NET/IB"], True)


def test_a_silent_fall_to_tcp_names_the_node(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "run"
    of_nccl({0: GOOD, 1: BAD}, root)
    host = os.uname().nodename
    fault = f"rank 1 on {host} uses NET/Socket between nodes, and fabric infiniband promises NET/IB"
    event = event_in(root)
    assert (event["agrees"], event["faults"]) == (False, [fault])
    assert f"trainer: the network is not used as promised: {fault}\n" in capfd.readouterr().err


def test_a_silent_fall_to_tcp_stops_the_attempt_on_all_ranks(tmp_path: Path) -> None:
    ended = of_nccl({0: GOOD, 1: BAD}, tmp_path / "run", network__watch="stop")
    assert all("rank 1 on" in text and "NET/Socket" in text for text in ended.values())


def test_the_log_stays_for_whoever_debugs(tmp_path: Path) -> None:
    files = of_nccl({0: GOOD}, tmp_path / "run", network__debug="warn")
    assert [len(names) for names in files.values()] == [2, 2]
    assert all(name.endswith(".nccl.log") for name in files[0])


def test_the_users_own_variables_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    root = tmp_path / "run"
    assert of_nccl({0: BAD}, root, network__watch="stop") == {0: [], 1: []}
    event = event_in(root)
    assert event["agrees"] is None
    assert "NCCL_DEBUG is WARN: only at INFO the library tells" in event["unknown"]


def test_the_users_own_file_is_read_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "info")
    monkeypatch.setenv("NCCL_DEBUG_FILE", f"{tmp_path}/100%%-%h-%p.txt")
    root = tmp_path / "run"
    of_nccl({0: BAD}, root)
    assert event_in(root)["agrees"] is False
    host = os.uname().nodename.partition(".")[0]
    assert len(list(tmp_path.glob(f"100%-{host}-*.txt"))) == RANKS


def told(rank: int, *lines: str) -> Told:
    return Told(f"rank {rank} on node", [], read_report(log(*lines), [0, 1]))


def test_what_cannot_be_judged_is_no_fault() -> None:
    def agrees(num_nodes: int, *ranks: Told, **changes: Any) -> bool | None:
        config = configuration(device="cuda", backend="nccl", **changes)
        return judge(parse_config(config, "test"), num_nodes, ranks).agrees

    ib = {"network__fabric": "infiniband", "network__promises": ["NET/IB"]}
    assert agrees(2, told(0, *GOOD)) is None  # nothing is promised
    assert agrees(2, told(0), **ib) is None  # nothing is told
    assert agrees(1, told(0, p2p("2.30.7", "CUMEM")), **ib) is None  # no second node
    assert agrees(2, told(0, *GOOD), told(1), **ib) is True
    assert agrees(2, told(0, *GOOD), told(1, *BAD), **ib) is False
