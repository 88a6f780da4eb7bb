"""Public failures of other launchers and trainers: each has a test here, marked by its number.

`pytest -m case` runs them all, `pytest --collect-only -m case` names them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
LISTS = TESTS.parent.parent / "shared" / "cases"
CASES = {
    "L01": "node 0 does not take itself for the host, its address being no name of its own",
    "L02": "the same with a pod's name below its service",
    "L03": "node 0 is given by a name that the other nodes cannot resolve",
    "L04": "an address is turned into a name, or there are no names at all",
    "L05": "the node's own name is a loopback address",
    "L06": "where srun was started is taken for the first node",
    "L07": "the rank is expanded in the batch script, so every node is node 0",
    "L08": "a fixed port, one in the ephemeral range, or another on each node",
    "L09": "MASTER_ADDR of the user is obeyed in part",
    "L10": "a name leads to the wrong network card",
    "L11": "interfaces by the beginnings of their names, and lo among them",
    "L12": "the job dies with node 0",
    "L13": "torchrun keeps USR1 and USR2 to itself",
    "L14": "one rank stops at a signal, the others wait for it",
    "L15": "a signal reaches the script alone, or the steps alone",
    "L16": "the signal is one that a library in the ranks uses",
    "L17": "a shell as the first process swallows SIGTERM",
    "L18": "the first run finds no checkpoint, the second does not look for one",
    "L19": "a half-written checkpoint is loaded",
    "L20": "the others wait for a rank that has crashed",
    "L21": "orphans keep their GPUs",
    "L22": "values with commas are cut, PATH is lost",
    "L23": "names in capitals, blanks and quotes lost",
    "L24": "a task has one core",
    "L25": "each rank sees one GPU alone",
    "L26": "the site refuses --gpus",
    "L27": "nodes with unequal numbers of GPUs",
    "L28": "several slices of one GPU",
    "L29": "an early failure keeps its nodes",
    "L30": "the image's variables win over the job's",
    "L31": "a limit for steps is taken for loading and saving",
    "L32": "a failed job's pods stay on their GPUs",
    "L33": "restarts without end",
    "L34": "one pod starts again, the others hang",
    "L35": "a pod's name or its port is there later than the pod that needs it",
    "L36": "a sidecar of Istio keeps the job from ending",
    "L37": "what a time to live deletes is made again, for ever",
    "L38": "an elastic job is shown Running or Succeeded wrongly",
    "L39": "admitted and suspended, or suspended and shown as running",
    "L40": "64 MB of shared memory",
    "L41": "locked memory is too small for a network card",
    "L44": "a requeued run meets its own old ranks",
    "T01": "accumulation under FSDP differs from the whole batch",
    "T02": "accumulation without sums keeps whole gradients",
    "T03": "FSDP1 with CPU offload and accumulation loses gradients",
    "T04": "a resume in a later epoch takes the first epoch's order",
    "T05": "what is fetched ahead is of the wrong epoch, or an epoch is skipped",
    "T06": "another number of ranks loses or repeats samples",
    "T07": "ranks with unequal numbers of batches hang",
    "T08": "means of means where token counts differ",
    "T09": "a parameter is ready twice under recomputation",
    "T10": "a gradient norm that is local, or counts twice",
    "T11": "bf16 gradients are summed in bf16",
    "T12": "the optimizer's state under FSDP is not restored",
    "T13": "the schedule steps once per rank, or twice after a resume",
    "T14": "rank 0's random state is given to all ranks",
    "T15": "a checkpoint is half-written, or its files are of two saves",
    "T16": "the checkpoint before is removed before the new one is on disk",
    "T17": "a signal ends the loader's workers, and with them the rank",
    "T18": "a stop is not heard in an evaluation, or before the first step",
    "T19": "one rank leaves alone",
    "T20": "the time to stop is shorter than a checkpoint",
    "T21": "a restart meets the old store, or nobody listens",
    "T22": "an asynchronous save clashes with training's group",
    "T23": "a resume takes an incomplete checkpoint",
    "T24": "rank 0 gathers the state of all ranks",
    "T25": "others do not wait long enough for a save",
    "T26": "the nodes share no file system",
    "T27": "initialisation without memory breaks ties",
    "T28": "frozen parameters break sharding",
    "T29": "a step of NaN poisons the weights and pushes the good checkpoints out",
    "T30": "validation on rank 0 alone hangs",
    "T31": "the loader's workers hang and nobody says where",
    "T32": "a shard group over several nodes is needed, or one over all is slow",
    "T33": "an estimate far below use",
}
LATER = {
    **dict.fromkeys(("L42", "L43"), "the first error among many logs, policies for lost nodes"),
}
"""What a later release tests."""


def marks(path: Path) -> Iterator[str]:
    """Each number in a mark of a test of the file."""
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef) or not function.name.startswith("test_"):
            continue
        for node in (n for decorator in function.decorator_list for n in ast.walk(decorator)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.case":
                yield from map(ast.literal_eval, node.args)


def test_each_case_has_a_test() -> None:
    found = {number for path in TESTS.rglob("test_*.py") for number in marks(path)}
    assert sorted(found) == sorted(CASES)


@pytest.mark.parametrize("name", ["launcher-cases.md", "trainer-cases.md"])
def test_no_case_of_the_lists_is_forgotten(name: str) -> None:
    if not (LISTS / name).exists():
        pytest.skip(f"the list of public failures is not here: {name}")
    listed = re.findall(r"^\| ([LT]\d\d)", (LISTS / name).read_text("utf-8"), re.MULTILINE)
    assert listed == sorted(case for case in CASES | LATER if case[0] == listed[0][0])
