"""Logs of all pods, merged and followed: no line is lost, none comes twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k8s.apiserver import ApiServer
from k8s.shapes import RUNNING, T1, T2, finished, pod, running, waiting
from orchestrator.backends import kubernetes_logs
from orchestrator.backends.kubernetes_client import Cluster
from orchestrator.backends.kubernetes_kinds import TARGETS
from orchestrator.backends.kubernetes_logs import Memory, RunLogs
from orchestrator.backends.runstore import LogLine
from running import wait_until

JOB = TARGETS["job"]


@pytest.fixture
def logs(server: ApiServer) -> Iterator[RunLogs]:
    made = RunLogs(Cluster(pauses_s=()), JOB, "demo", pause_s=0.01)
    yield made
    for key in list(server.logs.logs):
        server.logs.end(key[1], container=key[2])
    list(made.rest())
    for thread in made._threads:
        thread.join(10)


def words(lines: Iterator[LogLine]) -> list[str]:
    return [line.prefix + line.text.decode() for line in lines]


def collect(logs: RunLogs, shown: list[str], count: int) -> list[str]:
    """Lines until there are `count`."""

    def enough() -> bool:
        shown.extend(words(logs.new()))
        return len(shown) >= count

    wait_until(enough, f"{count} lines")
    return shown


def test_the_newest_pods_one_after_the_other(server: ApiServer, logs: RunLogs) -> None:
    server.create(finished("job", 1, 129, name="demo-1-old"))
    server.create(running("job", 1, created=T2))
    init = {"name": "fetch", "state": {"terminated": {"exitCode": 0}}, "restartCount": 0}
    server.create(pod("job", 0, RUNNING, created=T2, initContainerStatuses=[init]))
    server.create(pod("job", 2, waiting("ContainerCreating"), phase="Pending", created=T2))
    server.logs.write("demo-1-old", "[rank 2 b] old")
    server.logs.write("demo-1", "[rank 2 b] new\n[node] something")
    server.logs.write("demo-0", "fetched", container="fetch")
    server.logs.write("demo-0", "[node] attempt 2: 2 nodes are here: a, b\n[rank 0 a] \xe9")
    assert words(logs.all()) == [
        "[-] node 0 (fetch) | fetched",
        "[2] node 0 | [node] attempt 2: 2 nodes are here: a, b",
        "[2] rank 0 | \xe9",
        "[2] rank 2 | new",
        "[2] node 1 | [node] something",
    ]


def test_restarted_pods_and_containers_are_followed(server: ApiServer, logs: RunLogs) -> None:
    server.create(running("job", 0))
    server.logs.write("demo-0", "[node] attempt 1: 1 nodes are here: a")
    shown = collect(logs, [], 1)
    server.logs.write("demo-0", "[node] attempt 1 ended with 1: boom")
    server.delete("pods", "demo-0")  # with its last words already sent
    collect(logs, shown, 2)
    server.create(running("job", 0, created=T2))
    server.logs.write("demo-0", "[node] attempt 2: 1 nodes are here: a")
    collect(logs, shown, 3)
    assert [line[:9] + line[9:].partition("[node] ")[2] for line in shown] == [
        "[1] node attempt 1: 1 nodes are here: a",
        "[1] node attempt 1 ended with 1: boom",
        "[2] node attempt 2: 1 nodes are here: a",
    ]
    server.logs.restart("demo-0")
    server.logs.write("demo-0", "again")
    status = {"name": "node", "state": RUNNING, "restartCount": 1}
    with server.store.changed:
        told = server.get("pods", "demo-0")["status"]
        server.set("pods", "demo-0", status={**told, "containerStatuses": [status]})
    collect(logs, shown, 4)
    assert shown[3].endswith("| again")


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_lost_connection_loses_and_doubles_nothing(
    server: ApiServer, logs: RunLogs, cut: int
) -> None:
    server.create(running("job", 0))
    server.fail("/log", times=2, cut_after_lines=cut)
    server.fail("/log", times=2, status=500)
    at = [f"2026-11-30T10:00:{n // 3:02}.{n:09}Z" for n in range(30)]
    for number in range(20):
        server.logs.write("demo-0", f"line {number}", at=at[number])
    shown = collect(logs, [], 20)
    for number in range(20, 30):
        server.logs.write("demo-0", f"line {number}", at=at[number])
    collect(logs, shown, 30)
    server.logs.end("demo-0")
    shown += words(logs.rest())
    assert shown == [f"[-] node 0 | line {number}" for number in range(30)]


def test_many_lines_of_one_moment(server: ApiServer, logs: RunLogs) -> None:
    server.create(running("job", 0))
    server.fail("/log", times=1, cut_after_lines=700)
    server.logs.write("demo-0", "\n".join(str(n) for n in range(1000)), at=T1.replace("Z", ".5Z"))
    assert [line.rpartition(" ")[2] for line in collect(logs, [], 1000)] == list(
        map(str, range(1000))
    )


def test_a_log_that_cannot_be_read_is_a_line(server: ApiServer, logs: RunLogs) -> None:
    server.forbidden.add(("get", "pods/log"))
    server.create(running("job", 0))
    (line,) = collect(logs, [], 1)
    assert line.startswith("[-] node 0 | [orchestrate] ")
    assert "no permission" in line


def test_a_server_that_never_answers_is_given_up(server: ApiServer, logs: RunLogs) -> None:
    server.create(running("job", 0))
    server.fail("/log", times=kubernetes_logs.TRIES, drop=True)
    server.logs.write("demo-0", "never read")
    (line,) = collect(logs, [], 1)
    assert "no answer from" in line
    assert sum("/log" in request for request in server.requests) == kubernetes_logs.TRIES


def test_a_slow_reader_holds_the_streams_back(server: ApiServer, logs: RunLogs) -> None:
    logs._lines.maxsize = 10
    server.create(running("job", 0))
    server.logs.write("demo-0", "\n".join(str(n) for n in range(100)))
    shown = collect(logs, [], 10)
    collect(logs, shown, 100)
    assert [line.rpartition(" ")[2] for line in shown] == list(map(str, range(100)))


def test_what_is_not_followed_is_told(
    server: ApiServer, logs: RunLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_logs, "STREAMS_LIMIT", 1)
    for node in (0, 1):
        server.create(running("job", node))
        server.logs.write(f"demo-{node}", "a line")
    shown = collect(logs, [], 2)
    assert sorted(line.partition(" | ")[2][:30] for line in shown) == [
        "[orchestrate] not followed: mo", "a line",
    ]  # fmt: skip


SECONDS = st.lists(st.integers(0, 5), max_size=40)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # of a busy machine
@given(SECONDS, st.data())
def test_any_cuts_in_a_log(seconds: list[int], data: st.DataObject) -> None:
    """Lines may be out of order by a second."""
    log = [
        f"2026-11-30T10:00:{second + k % 2:02}.5+02:00 {k}".encode()
        for k, second in enumerate(sorted(seconds))
    ]
    memory, shown = Memory(), []
    for _ in range(data.draw(st.integers(0, 4))):
        shown += taken(memory, log[: data.draw(st.integers(0, len(log)))])
    shown += taken(memory, log)
    assert shown == [str(k).encode() for k in range(len(log))]


def taken(memory: Memory, log: list[bytes]) -> list[bytes]:
    """What a new connection to a log adds; the server's filter goes by whole seconds."""
    since = memory.again()[:19].encode()
    sent = [line for line in log if line[:19] >= since]
    return [text for raw in sent if (text := memory.take(raw)) is not None]


def test_threads_end_with_their_logs(server: ApiServer, logs: RunLogs) -> None:
    server.create(running("job", 0))
    server.logs.write("demo-0", "one")
    collect(logs, [], 1)
    server.logs.end("demo-0")
    list(logs.rest())
    assert not [thread for thread in logs._threads if thread.is_alive()]
