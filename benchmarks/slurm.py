"""On Slurm: listing 500 runs, and rendering a job of 1,000 nodes against one of a single node.

The list is that of a real Slurm on this machine (slurm/dev-cluster, which needs root; without it
that row is left out), whose commands are counted by what stands before them on PATH.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cli import BIN, ROOT
from benchmarks.paired import compare, time_commands
from orchestrator.backends import folder
from orchestrator.backends.base import Handle
from orchestrator.plan import make_plan
from orchestrator.profiles import embedded_profiles
from orchestrator.render import render
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job

NUM_RUNS = 500
NODES = (1000, 1)
LIST_PAIRS, COMMAND_PAIRS, BLOCKS = 7, 31, 31
BLOCK_RENDERS = 10
UP_TIMEOUT_S, COMMAND_TIMEOUT_S = 180, 120
DEV_CLUSTER = ROOT / "slurm" / "dev-cluster"
COUNTED = ("sbatch", "squeue", "sacct", "scontrol", "sinfo", "scancel", "sacctmgr", "srun")
JOB = """\
name: bench
resources: {{nodes: {nodes}, ranks_per_node: 8, gpus_per_node: 8}}
train: {{model: {{preset: tiny}}, data: {{text: "*.txt"}}, steps: 100}}
"""


def rows() -> list[str]:
    """Measure, and return lines for the table."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/tmp") as name:
        return [*_list_rows(Path(name)), _render_row(), _command_row(Path(name))]


def _render_row() -> str:
    times: dict[int, list[float]] = {nodes: [] for nodes in NODES}
    for number in range(-1, BLOCKS):
        for nodes in NODES if number % 2 else reversed(NODES):
            seconds = _render_s(nodes)
            if number >= 0:  # the first round only warms up
                times[nodes].append(seconds)
    what = "check, plan and render for Slurm, in-process, CPU time: 1,000 nodes : 1 node"
    return compare(*(times[nodes] for nodes in NODES)).row(what, "1.2")


def _render_s(nodes: int) -> float:
    """CPU seconds of one way from a job file's text to its files, mean of a block."""
    profile = embedded_profiles().profiles["slurm"]
    text = JOB.format(nodes=nodes).encode()
    began = time.process_time()
    for _ in range(BLOCK_RENDERS):
        job = resolve_job(parse_document(text, "job.yaml"), profile, [])
        render(make_plan(job.spec, profile))
    return (time.process_time() - began) / BLOCK_RENDERS


def _command_row(directory: Path) -> str:
    for nodes in NODES:
        (directory / f"{nodes}.yaml").write_text(JOB.format(nodes=nodes))
    command = [str(BIN / "orchestrate"), "render", "--cluster", "slurm"]
    many, one = ([*command, f"{nodes}.yaml"] for nodes in NODES)
    times = time_commands(many, one, COMMAND_PAIRS, directory)
    return compare(*times).row("`orchestrate render` for Slurm, 1,000 nodes : 1 node", "1.2")


def _list_rows(directory: Path) -> list[str]:
    """One row; none where no cluster can run."""
    check = subprocess.run([DEV_CLUSTER, "check"], capture_output=True, text=True, check=False)
    if check.returncode:
        print(f"no list on Slurm: {check.stderr.strip()}", file=sys.stderr)
        return []
    with _cluster(directory / "cluster") as environ:
        for root, count in (("many", NUM_RUNS), ("one", 1)):
            _make_runs(directory / root, count, environ)
        return [_list_row(directory, environ)]


@contextmanager
def _cluster(state: Path) -> Iterator[dict[str, str]]:
    """A cluster of two nodes; the environment in which its commands are found."""
    command = [str(DEV_CLUSTER), "--state", str(state)]
    up = ("up", "2", "--acct", "--until-pid", str(os.getpid()))
    subprocess.run([*command, *up], check=True, timeout=UP_TIMEOUT_S, stdout=sys.stderr)
    path = f"{state / 'bin'}:{os.environ['PATH']}"
    try:
        yield {**os.environ, "PATH": path, "SLURM_CONF": str(state / "slurm.conf")}
    finally:
        subprocess.run([*command, "down", "--purge"], check=True, stdout=sys.stderr)


def _make_runs(root: Path, count: int, environ: Mapping[str, str]) -> None:
    """Runs with real jobs, every other one held, and one whose job nobody knows.

    A single submit takes some tenths of a second, mostly to be safe against a power failure; here
    only what `list` reads is written.
    """
    for number in range(count):
        name = f"run-{number:03}"
        options = ["--hold"] if number % 2 else []
        argv = ["sbatch", "--parsable", "--output=/dev/null", f"--job-name={name}", *options]
        answer = subprocess.run(
            [*argv, "--wrap=true"], env=environ, check=True, capture_output=True, text=True,
            timeout=COMMAND_TIMEOUT_S,
        )  # fmt: skip
        _make_folder(root / name, answer.stdout.strip())
    _make_folder(root / "unknown", "9999999")


def _make_folder(run_dir: Path, job: str) -> None:
    attempt = run_dir / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "owner.json").write_text(json.dumps({"job": f"{job}.0"}))
    (run_dir / "metrics.jsonl").write_text('{"step": 1, "loss": 5.5}\n' * 1000)
    (run_dir / "rendered").mkdir()
    (run_dir / "rendered" / "trainer.json").write_text(json.dumps({"steps": 1000}))
    handle = Handle("slurm", run_dir.name, run_dir, {"job": job, "cluster": ""})
    receipt = folder.receipt_of(handle, run_dir.parent, ())
    (run_dir / "receipt.json").write_bytes(receipt)


def _list_row(directory: Path, environ: Mapping[str, str]) -> str:
    """Time both lists, and count Slurm's commands in one of the long one."""
    clusters = {root: {"target": "slurm", "runs_root": str(directory / root)}
                for root in ("many", "one")}  # fmt: skip
    file = directory / "clusters.yaml"
    file.write_text(json.dumps({"clusters": clusters}))
    command = [str(BIN / "orchestrate"), "list", "--clusters", str(file), "--cluster"]
    used = _commands_used([*command, "many", "--json"], directory, environ)
    os.environ.update(environ)
    times = time_commands([*command, "many"], [*command, "one"], LIST_PAIRS, directory)
    what = f"`orchestrate list`, {NUM_RUNS + 1} runs on Slurm ({' + '.join(used)}) : 2 runs"
    return compare(*times).row(what, "a: 2 s, two commands")


def _commands_used(command: list[str], directory: Path, environ: Mapping[str, str]) -> list[str]:
    """Names of Slurm's commands that were run. Raises AssertionError if the list is not right."""
    calls, before = directory / "calls", directory / "counting"
    before.mkdir()
    for name in COUNTED:
        wrapper = before / name
        real = directory / "cluster" / "bin" / name
        wrapper.write_text(f'#!/bin/sh\necho {name} >>{calls}\nexec {real} "$@"\n')
        wrapper.chmod(0o755)
    path = f"{before}:{environ['PATH']}"
    answer = subprocess.run(
        command, env={**environ, "PATH": path}, check=True, capture_output=True, text=True,
        timeout=COMMAND_TIMEOUT_S,
    )  # fmt: skip
    states = Counter(run["state"] for run in json.loads(answer.stdout))
    half = NUM_RUNS // 2
    assert states == {"DONE": half, "QUEUED": half, "LOST": 1}, states
    return calls.read_text().split()


if __name__ == "__main__":
    print("\n".join(rows()))
