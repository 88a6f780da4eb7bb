"""What the logs of pods say: lines as node.py copies them, whatever the ranks print."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.backends.kubernetes_kept import below, rebuilt
from orchestrator.backends.kubernetes_pods import Phase, PodFacts
from orchestrator.backends.kubernetes_said import metrics_lines, read_said

LINES = st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=8)
NUMBERS = st.integers(0, 10**6)


def pod(node: int, created: str = "1", finished: str = "2") -> PodFacts:
    return PodFacts(f"demo-{node}", node, "", Phase.DONE, 0, created=created, finished=finished)


@given(LINES, LINES, st.integers(1, 99))
def test_the_ranks_logs_are_rebuilt_as_they_were(
    zero: list[bytes], one: list[bytes], attempt: int
) -> None:
    head = [b"[node] attempt %d: 2 nodes are here: a, b" % attempt]
    head += [b"[rank 0 a.b-c] " + line for line in zero]
    member = [b"[rank 31 host] " + line for line in one] + [b"[node] leaving with 0: done"]
    logs = [(pod(0), b"\n".join(head) + b"\n"), (pod(1), b"\n".join(member) + b"\n")]
    files = rebuilt(logs)
    folder = f"attempts/{attempt}/logs"
    for name, lines in (("rank-00000.log", zero), ("rank-00031.log", one)):
        assert files.get(f"{folder}/{name}", b"") == b"".join(line + b"\n" for line in lines)


@given(st.lists(NUMBERS, max_size=8), LINES)
def test_metrics_are_told_from_what_ranks_print(steps: list[int], noise: list[bytes]) -> None:
    wanted = [json.dumps({"step": step}).encode() for step in steps]
    tagged = [b"[rank 0 a] [metrics] " + line for line in wanted]
    between = [b"[rank 1 a] [metrics]" + line for line in noise] + [b"[metrics] {}"]
    assert list(metrics_lines([*between, *tagged, *between])) == wanted
    assert list(metrics_lines([b"2026-11-30T10:00:00Z " + line for line in tagged])) == wanted


@given(st.binary(max_size=300))
def test_any_log_says_something(log: bytes) -> None:
    said = read_said(log)
    assert said.attempt is None or said.attempt >= 0
    for path, content in rebuilt([(pod(0), log)]).items():
        assert content.endswith(b"\n"), path


def test_the_newest_attempt_counts() -> None:
    log = b"""\
[rank 0 a] [metrics] {"step": 7, "attempt": 1}
[node] attempt 1 ended with 203: drained
[node] attempt 2: 2 nodes are here: a, b
"""
    said = read_said(log)
    assert (said.attempt, said.step, said.steps, said.end) == (2, 7, None, "")
    assert read_said(log[: log.index(b"[node] attempt 2")]).end == "drained"
    assert read_said(b"") == type(said)()


def test_names_in_a_folder() -> None:
    files = ["a", "b/c", "b/d/e", "bb/f"]
    assert below(files, "") == ["a", "b", "bb"]
    assert below(files, "b") == ["c", "d"]
    assert below(files, "b/c") == []
    assert below(files, "none") == []
