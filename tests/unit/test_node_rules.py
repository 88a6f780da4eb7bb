"""Parts of node.py by themselves: who is blamed, what is read from others, what is copied."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from running import free_port, wait_until
from trainer import node
from trainer.node import Echo, Head, RankWatch, Result, decide, ended_with, ending_words, shortened

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


# --- who is blamed -----------------------------------------------------------------------------


def result(number: int, code: int = 0, **fields: Any) -> Result:
    return Result(number, f"host{number}", code, **fields)


def test_the_first_to_fail_since_go_is_blamed() -> None:
    late = result(0, 1, rank=0, message="a consequence", at=9.0)
    first = result(1, 1, rank=2, message="the cause", detail="more", at=3.0)
    assert decide([late, first], "") == {
        "version": 1, "code": 1, "reason": "rank 2 on node 1 (host1): the cause",
        "detail": "more", "node": 1, "rank": 2,
    }  # fmt: skip


def test_a_configuration_error_is_blamed_before_what_came_first() -> None:
    first = result(0, 1, message="killed", at=1.0)
    fault = result(1, 1, kind="configuration", rank=3, message="no data", at=2.0)
    assert decide([first, fault], "drained")["code"] == 78


@pytest.mark.parametrize(("num_nodes", "rest"), [(1, 0), (2, 0), (9, 0), (12, 3)])
def test_the_ranks_of_all_nodes_that_did_not_stop_are_named(num_nodes: int, rest: int) -> None:
    text = "not drained within 4 s of SIGTERM, killed; not stopped: rank"
    results = [
        result(n, 1, kind="undrained", rank=n, message=f"{text} {n}", at=n + 1.0)
        for n in range(num_nodes)
    ]
    stopped = result(num_nodes, 1, rank=num_nodes, message="killed", at=0.5 + num_nodes)
    reason = decide([*results, stopped], "")["reason"]
    head, *more = reason.split("; on node ")
    assert head == f"rank 0 on node 0 (host0): {text} 0"
    named = [f"{n} (host{n}) too, not stopped: rank {n}" for n in range(1, num_nodes)][:8]
    if rest:
        named[-1] += f"; and on {rest} more"
    assert more == named


@pytest.mark.parametrize(("outcome", "code"), [("done", 0), ("drained", 75), ("", 1)])
def test_without_a_fault_the_outcome_counts(outcome: str, code: int) -> None:
    assert decide([result(0), result(1)], outcome)["code"] == code


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "ended with code 3"),
        (-9, "was killed by signal 9 (SIGKILL)"),
        (-35, "was killed by signal 35"),
    ],
)
def test_how_a_process_ended(code: int, words: str) -> None:
    assert ending_words(code) == words


@given(st.text())
def test_a_reason_is_one_short_line(text: str) -> None:
    first, detail = shortened(text)
    assert len(first.splitlines()) <= 1
    assert first == "".join(text.strip().splitlines()[:1])
    assert len(detail) <= len(text)


@given(st.text(min_size=1, max_size=20), st.integers(0, 9000))
def test_a_result_fits_into_one_message(letters: str, count: int) -> None:
    first, detail = shortened(letters * count + "\n" + letters * count)
    sent = {"result": dataclasses.asdict(result(0, 1, message=first, detail=detail))}
    assert len(json.dumps(sent)) < node.LINE_LIMIT


# --- what others send --------------------------------------------------------------------------


@given(JSON | st.fixed_dictionaries({f.name: JSON for f in dataclasses.fields(Result)}))
def test_a_result_of_another_node_is_checked(content: object) -> None:
    found = Result.from_message(content)
    assert found is None or isinstance(found.at + found.code, int | float)


def test_a_result_arrives_as_it_was_sent() -> None:
    sent = result(1, -9, kind="failure", rank=2, message="m", detail="d", at=1.5)
    assert Result.from_message(json.loads(json.dumps(dataclasses.asdict(sent)))) == sent


@pytest.fixture
def head() -> Iterator[Head]:
    made = Head(
        argparse.Namespace(
            nnodes=2,
            nproc=1,
            id="x",
            host="h",
            gpus=0,
            fault="",
            address="127.0.0.1",
            port=free_port(),
            repeat_codes_from=0,
        )
    )
    yield made
    made.close_roll_call()
    for link in list(made.links.values()):
        made._drop(link)
    made.selector.close()


def connect(head: Head) -> socket.socket:
    return socket.create_connection(("127.0.0.1", head.args.port))


def say(stranger: socket.socket, message: object) -> None:
    stranger.sendall(json.dumps(message).encode() + b"\n")


def test_a_connection_that_made_room_for_another_is_not_asked(head: Head) -> None:
    limit = 2 * head.args.nnodes + 64
    strangers = []
    for count in range(1, limit + 1):
        strangers.append(connect(head))
        wait_until(lambda: head.poll() or len(head.pending) == count, "it is accepted")  # noqa: B023
    # One select reports both: the listener first, then the one that it drops for the new one.
    strangers.append(connect(head))
    say(strangers[0], {})
    wait_until(lambda: head.poll() or is_closed(strangers[0]), "it is dropped")
    assert len(head.pending) == limit
    for stranger in strangers:
        stranger.close()


def is_closed(stranger: socket.socket) -> bool:
    stranger.setblocking(False)
    try:
        return stranger.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("rank", [True, 1.0, "1", None, [], 0, 2, -1])
def test_a_node_rank_is_a_whole_number_in_its_place(head: Head, rank: object) -> None:
    with connect(head) as stranger:
        say(stranger, {"id": "x", "nnodes": 2, "nproc": 1, "node_rank": rank, "host": "h"})
        wait_until(lambda: head.poll() or head.refused, "it is refused")
        assert f"its node rank {rank!r} is not among 1 to 1" in head.refused[0]


@pytest.mark.parametrize("sent", [None, {}, {"node": 1}, {**dataclasses.asdict(result(0))}])
def test_a_result_that_cannot_be_read_is_that_nodes_fault(head: Head, sent: object) -> None:
    agent: Any = SimpleNamespace(elapsed_s=lambda: 4.0)
    with connect(head) as stranger:
        say(stranger, {"id": "x", "nnodes": 2, "nproc": 1, "node_rank": 1, "host": "other"})
        wait_until(lambda: head.poll() or 1 in head.links, "it joins")
        say(stranger, {"result": sent})
        found: list[Result] = []

        def is_heard() -> bool:
            found.extend(node.heard(head, agent))
            return bool(found)

        wait_until(is_heard, "it is heard")
    assert (found[0].node, found[0].host, found[0].code, found[0].at) == (1, "other", 1, 4.0)
    assert "cannot be read" in found[0].message


# --- which rank ends first ---------------------------------------------------------------------


def start_rank(rank: int, code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        env=os.environ | {"RANK": str(rank)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


WAIT = "import sys; print(flush=True); sys.exit(int(sys.stdin.readline()))"
# What a rank starts has its variables, too, and lives on when the rank has ended.
WITH_CHILD = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-I', '-S', '-c', 'input()']);"
)


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Three ranks below this process as the agent; RANK 8 to 10 of some larger world."""
    made = [start_rank(rank, WITH_CHILD + WAIT) for rank in (8, 9, 10)]
    for one in made:
        assert one.stdout
        one.stdout.readline()
    yield made
    for one in made:
        one.kill()
        one.communicate()


def end(rank: subprocess.Popen[bytes], code: int) -> None:
    assert rank.stdin
    rank.stdin.write(f"{code}\n".encode())
    rank.stdin.flush()
    wait_until(lambda: ended_with(rank.pid) is not None, "it has ended")


def watching() -> RankWatch:
    watch = RankWatch(os.getpid(), range(8, 11), time.monotonic)
    watch.start()
    return watch


def test_ranks_are_the_agents_children(ranks: list[subprocess.Popen[bytes]]) -> None:
    pids = {8 + n: one.pid for n, one in enumerate(ranks)}
    assert node.ranks_below(os.getpid(), range(8, 11)) == pids
    assert node.ranks_below(os.getpid(), range(9)) == {8: ranks[0].pid}


def test_the_rank_that_fails_is_named_and_not_one_that_had_ended(
    ranks: list[subprocess.Popen[bytes]],
) -> None:
    watch = watching()
    wait_until(lambda: len(watch.found) == 3, "it has found them")
    end(ranks[0], 0)
    end(ranks[2], 3)
    wait_until(lambda: watch.first, "it is noticed")
    end(ranks[1], 4)
    watch.finish()
    assert watch.first
    assert (watch.first[0], watch.first[2]) == (10, "it ended with code 3")


def test_a_signal_is_named(ranks: list[subprocess.Popen[bytes]]) -> None:
    ranks[1].send_signal(signal.SIGKILL)
    wait_until(lambda: ended_with(ranks[1].pid) is not None, "it has ended")
    assert ended_with(ranks[1].pid) == -9
    assert ended_with(ranks[0].pid) is None


# --- what is copied ----------------------------------------------------------------------------


def echo_of(folder: Path) -> Echo:
    (folder / "logs").mkdir()
    agent: Any = SimpleNamespace(dir=folder, ranks=range(1), args=SimpleNamespace(host="h"))
    return Echo(agent)


def test_a_log_is_copied_in_bounded_pieces(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "ECHO_LIMIT", 10)
    echo = echo_of(tmp_path)
    node.log_path(tmp_path, 0).write_bytes(b"one\ntwo\n" + b"x" * 25 + b"\nend")
    sizes = [len(echo._next(0, node.log_path(tmp_path, 0), last=False)) for _ in range(2)]
    assert sizes == [8, 10]
    echo.start()
    echo.finish()
    words = capfdbinary.readouterr().out.replace(b"[rank 0 h] ", b"").split(b"\n")
    assert words == [b"x" * 10, b"x" * 5, b"end", b""]


def test_a_full_disk_does_not_end_the_copying(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    echo = echo_of(tmp_path)
    log = node.log_path(tmp_path, 0)
    log.write_bytes(b"lost\n")
    kept, full = os.dup(1), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 1)
    try:
        assert echo.copy()
        with log.open("ab") as file:
            file.write(b"lost, too\n")
        assert echo.copy()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(full)
    with log.open("ab") as file:
        file.write(b"third\n")
    assert echo.copy()
    out, err = capfd.readouterr()
    assert out == "[rank 0 h] third\n"
    assert err.count("cannot copy the ranks' output") == 1
