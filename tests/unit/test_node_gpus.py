"""Nodes with fewer GPUs than each is to have are refused by name, before an attempt is claimed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from running import Nodes
from trainer import node


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "run").mkdir()
    made = Nodes(tmp_path / "run", tmp_path, nnodes=4)
    yield made
    made.close()


def start(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, *seen: str) -> None:
    """Start each node with these GPUs to be seen, where two are asked for."""
    for number, names in enumerate(seen):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
        nodes.start(number, gpus_per_node=2)


@pytest.mark.case("L27")
@pytest.mark.parametrize("direct", [False, True])
def test_all_nodes_with_too_few_are_named(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    nodes.direct, nodes.nproc = direct, 1
    start(nodes, monkeypatch, "0,1", "0,1", "3", "")
    assert set(nodes.codes().values()) == {78}, nodes.all_logs()
    log = nodes.log(0).read_text()
    assert "2 GPUs are asked for on each node, but node" in log
    has = ["node 1 "] if direct else ["node 2 ", "node 3 "]
    assert [f"node {k} " for k in range(4) if f"node {k} (" in log] == has
    assert all("2 GPUs are asked for" in nodes.log(k).read_text() for k in range(4))
    assert not list((nodes.run_dir).glob("attempts/*"))


def test_enough_on_each_are_taken(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.nproc = 1
    start(nodes, monkeypatch, "0,1", "2,3", "4,5,6", "GPU-a,GPU-b")
    assert set(nodes.codes().values()) == {0}, nodes.all_logs()


def test_where_none_shows_any_the_program_will_say(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.nproc = 1
    start(nodes, monkeypatch, "", "", "", "")
    assert set(nodes.codes().values()) == {0}, nodes.all_logs()


@pytest.mark.parametrize(
    ("names", "count"),
    [("0", 1), ("0,1,2", 3), (" 1 , 0", 2), ("", 0), ("-1", 0), ("0,-1,1", 1), ("NoDevFiles", 0),
     ("MIG-12-34,MIG-5", 2), ("0,1,", 2)],
)  # fmt: skip
def test_the_first_that_there_is_not_ends_the_list(
    monkeypatch: pytest.MonkeyPatch, names: str, count: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    assert node.visible_gpus() == count


def test_without_a_list_the_devices_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    names = [path.name for path in Path("/dev").glob("nvidia[0-9]*")]
    assert node.visible_gpus() == len(names)
