"""From kill -9 of a rank to the next step, in its parts, and resuming against the model's size.

`python -m benchmarks.recovery`, on a quiet machine; the figures of docs/faults.md.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from benchmarks import resuming
from benchmarks.paired import machine
from orchestrator.backends import local
from orchestrator.backends.base import Handle
from orchestrator.backends.processes import descendants
from orchestrator.plan import make_plan
from orchestrator.profiles import find_profiles
from orchestrator.render import render
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job

WORLDS = {2: (1, 2), 4: (2, 2)}  # ranks: nodes, ranks of each
ROUNDS = 3
KILLED_AFTER = 12  # steps
TIMEOUT_S = 300.0
JOB = """\
name: recovery
resources: {{nodes: {nodes}, ranks_per_node: {ranks}}}
train:
  model: {{preset: nano}}
  data: {{synthetic: {{samples: 4096}}}}
  logging: {{every: 1, tensorboard: false}}
  steps: 1000000
checkpoint: {{every: 5}}
"""
PARTS = {
    "noticing": "until another rank has told of it",
    "ending": "until the attempt is over: torchrun and node.py have ended",
    "beginning": "until node 0 has claimed the next: supervisor, node.py, roll call",
    "torchrun": "until it has started the ranks",
    "preparing": "Python, torch, rendezvous, data, model, two passes that are thrown away",
    "restoring": "the checkpoint is found, verified and loaded",
    "stepping": "the first step and its line of metrics",
}


def parts_of(ranks: int, folder: Path) -> dict[str, float]:
    """Seconds of each part of one recovery."""
    with started(ranks, folder) as handle:
        run_dir = handle.run_dir
        await_step(run_dir, 1, KILLED_AFTER)
        killed = time.time()
        os.kill(pid_of(run_dir, ranks - 1), signal.SIGKILL)
        await_step(run_dir, 2, 1)
        stepped = time.time()
        first = next(line for line in lines(run_dir / "goodput.jsonl") if line["attempt"] == 2)
    errors = (run_dir / "attempts/1/errors").glob("rank-*.json")
    initialisation_s = first["seconds"]["initialisation"]
    moments = [
        killed,
        min(file.stat().st_mtime for file in errors),
        (run_dir / "attempts/1/end.json").stat().st_mtime,
        (run_dir / "attempts/2/owner.json").stat().st_mtime,
        first["from"],
        first["from"] + initialisation_s,
        first["from"] + initialisation_s + first["seconds"].get("restore", 0.0),
        stepped,
    ]
    return dict(zip(PARTS, (b - a for a, b in pairwise(moments)), strict=True))


@contextmanager
def started(ranks: int, folder: Path) -> Iterator[Handle]:
    """The job on so many ranks of this machine while the block runs."""
    nodes, per_node = WORLDS[ranks]
    text = JOB.format(nodes=nodes, ranks=per_node)
    profile = find_profiles(None, {}, folder).choose("local")
    spec = resolve_job(parse_document(text.encode(), "job.yaml"), profile, []).spec
    handle = local.BACKEND.submit(
        render(make_plan(spec, profile)), runs_root=folder / "runs", workdir=folder, job_text=text
    ).handle
    try:
        yield handle
    finally:
        local.BACKEND.cancel(handle, now=True)


def pid_of(run_dir: Path, rank: int) -> int:
    """The process of a rank of the run."""
    marks = {f"ORCHESTRATE_RUN_DIR={run_dir}".encode(), f"RANK={rank}".encode()}
    for process in descendants(1):
        try:
            variables = set(Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"))
        except OSError:  # it has ended
            continue
        if marks <= variables:
            return process.pid
    raise LookupError(f"no rank {rank} of {run_dir}")


def await_step(run_dir: Path, attempt: int, least: int) -> None:
    """Return when the attempt has told of a step from `least` on; TimeoutError if it does not."""

    def is_there(line: Mapping[str, Any]) -> bool:
        return line["attempt"] == attempt and "loss" in line and line["step"] >= least

    def has_stepped() -> bool:
        return any("event" not in x and is_there(x) for x in lines(run_dir / "metrics.jsonl"))

    wait_until(has_stepped, f"step {least} of attempt {attempt} in {run_dir}")


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {TIMEOUT_S:g} s: {what}")
        time.sleep(0.02)


def lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON lines; none if it is not there."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def table() -> Iterator[str]:
    """Medians over the rounds, a line for each part."""
    medians: dict[int, dict[str, float]] = {}
    for ranks in WORLDS:
        found = []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory(prefix="recovery-") as name:
                found.append(parts_of(ranks, Path(name)))
        medians[ranks] = {part: statistics.median(f[part] for f in found) for part in PARTS}
        medians[ranks]["all"] = statistics.median(sum(f.values()) for f in found)
    yield "| part | | " + " | ".join(f"{ranks} ranks" for ranks in WORLDS) + " |"
    yield "|---|---|" + "---|" * len(WORLDS)
    for part, words in {**PARTS, "all": "wanted: below 20 s"}.items():
        yield f"| {part} | {words} | " + " | ".join(
            f"{medians[ranks][part]:.1f} s" for ranks in WORLDS
        ) + " |"  # fmt: skip


if __name__ == "__main__":
    for line in chain(table(), [""], resuming.table()):
        print(line, flush=True)
    print(f"\n{machine()}")
