"""node.py with --sizes: an attempt begins with fewer nodes, numbered anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from running import Nodes, read, wait_until


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    run_dir, workdir = tmp_path / "run", tmp_path / "work"
    run_dir.mkdir()
    workdir.mkdir()
    made = Nodes(run_dir, workdir, nnodes=4, nproc=1)
    yield made
    made.close()


def worlds(nodes: Nodes) -> list[str]:
    """What the ranks' first lines say of their place."""
    logs = sorted((nodes.run_dir / "attempts/1/logs").iterdir())
    return [log.read_text().partition(" in ")[0] for log in logs]


def test_enough_nodes_begin_after_the_grace_numbered_anew(nodes: Nodes) -> None:
    nodes.start(3, 0, sizes="1,2,4", join_grace_s=5)
    assert nodes.codes() == {0: 0, 3: 0}, nodes.all_logs()
    assert worlds(nodes) == ["rank 0 of 2", "rank 1 of 2"]


def test_all_nodes_begin_without_a_grace(nodes: Nodes) -> None:
    nodes.start(0, 1, 2, 3, sizes="1,2,4", join_grace_s=3600)
    assert set(nodes.codes().values()) == {0}, nodes.all_logs()
    assert len(worlds(nodes)) == 4


def test_a_node_beyond_an_allowed_size_leaves_with_the_others(nodes: Nodes) -> None:
    nodes.mode = "wait"
    nodes.start(0, 1, 3, sizes="2,4", join_grace_s=5)
    for rank in (0, 1):
        ready = nodes.run_dir / f"attempts/1/ready-{rank}"
        wait_until(ready.exists, f"{ready}\n{nodes.all_logs()}")
    wait_until(lambda: "waiting for its end" in nodes.log(3).read_text(), "node 3 waits")
    for node in (0, 1, 3):  # as a cancel does
        nodes.started[node].terminate()
    assert nodes.codes() == {0: 75, 1: 75, 3: 75}, nodes.all_logs()
    assert "node 3 (" in nodes.log(0).read_text()


def test_a_spare_that_is_lost_is_no_loss(nodes: Nodes) -> None:
    nodes.mode = "finish"
    nodes.start(0, 1, 3, sizes="2,4", join_grace_s=5)
    wait_until(lambda: "waiting for its end" in nodes.log(3).read_text(), "node 3 waits")
    nodes.started[3].kill()
    assert nodes.started[3].wait(timeout=60) == -9
    (nodes.run_dir / "attempts/1/drain").touch()
    assert nodes.codes() == {0: 0, 1: 0, 3: -9}, nodes.all_logs()


def test_too_few_nodes_are_named(nodes: Nodes) -> None:
    nodes.start(0, 2, sizes="3,4", join_grace_s=0, start_timeout_s=4)
    assert nodes.codes() == {0: 1, 2: 1}
    text = "node 1, 3 of 4 did not report within 4 s; an attempt needs 3; here: node 0 ("
    assert all(text in nodes.log(node).read_text() for node in (0, 2))
    assert not (nodes.run_dir / "attempts").exists()


def test_the_nodes_of_a_lost_one_are_named_by_their_place(nodes: Nodes) -> None:
    nodes.mode = "wait-plain"
    nodes.start(0, 2, sizes="2,4", join_grace_s=3, shutdown_timeout_s=1)
    ready = nodes.run_dir / "attempts/1/ready-1"
    wait_until(ready.exists, f"{ready}\n{nodes.all_logs()}")
    nodes.started[2].kill()
    assert nodes.codes() == {0: 1, 2: -9}
    end = read(nodes.run_dir / "attempts/1/end.json")
    assert (end["node"], end["rank"]) == (1, None)
    assert "the node was lost" in end["reason"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sizes": "1,x"}, "write it as 1,2,4"),
        ({"sizes": ","}, "write it as 1,2,4"),
        ({"sizes": "1,2"}, "--sizes must be numbers from 1 up to 4"),
        ({"sizes": "0,4"}, "--sizes must be numbers from 1 up to 4"),
        ({"sizes": "4,5"}, "--sizes must be numbers from 1 up to 4"),
        ({"sizes": "4", "join_grace_s": -1}, "--join-grace-s from 0 s"),
    ],
)
def test_sizes_are_checked(nodes: Nodes, changes: dict[str, object], words: str) -> None:
    nodes.start(0, **changes)
    assert nodes.codes() == {0: 78}
    assert words in nodes.log(0).read_text()


def test_ranks_that_are_started_each_have_one_size(nodes: Nodes) -> None:
    nodes.direct = True
    nodes.start(0, sizes="2,4")
    assert nodes.codes() == {0: 78}
    assert "--direct has one size" in nodes.log(0).read_text()
