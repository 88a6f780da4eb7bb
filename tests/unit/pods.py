"""The pods of a run as node.py alone: processes that count their starts as on Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from running import Nodes

MakePods = Callable[..., Nodes]


@contextmanager
def pods_in(folder: Path) -> Iterator[MakePods]:
    """What makes the pods of a run in a folder: two nodes of one rank each, with one failure and
    one requeue to spare, and more arguments of node.py. At the end none is left."""
    made: list[Nodes] = []

    def make(mode: str, nnodes: int = 2, **options: object) -> Nodes:
        given = {"repeat-codes-from": 128, "failures": 1, "requeues": 1} | {
            name.replace("_", "-"): value for name, value in options.items()
        }
        also = tuple(text for name, value in given.items() for text in (f"--{name}", str(value)))
        for name in ("run", "work"):
            (folder / name).mkdir()
        made.append(Nodes(folder / "run", folder / "work", mode, nnodes, nproc=1, also=also))
        return made[-1]

    yield make
    for nodes in made:
        nodes.close()


def attempts(nodes: Nodes) -> list[str]:
    """The attempts of a run by their numbers."""
    folder = nodes.run_dir / "attempts"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def waits(nodes: Nodes, node: int) -> bool:
    """Whether a node has found nobody at node 0's place so far."""
    return "waiting for node 0 at " in nodes.log(node).read_text()
