"""Advice against measurement on the CPU: `python -m benchmarks.advice`; writes
docs/advice-measured.md.

All strategies of some models are run by `orchestrate bench`, on one simulated node and on two. The
planner gets its figures of the machine from `bench --calibrate` on another model. Then memory
limits are laid between the measured peaks, and for each the strategy that `strategy: auto` takes is
compared with the fastest measured one that fits.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.advice_page import BY_CPU, page
from orchestrator.bench.book import DONE, Row, row_of
from orchestrator.bench.calibrate import fit
from orchestrator.bench.measured import planned
from orchestrator.cli.benching import Asked, observations
from orchestrator.cli.common import Loaded, load_job
from orchestrator.errors import FaultsError
from orchestrator.estimate.hardware import hardware_of
from orchestrator.estimate.model import outline_of
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.whole import FITS, estimate

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/advice-measured.md"
THREE = "ddp,shard_grad_op,full_shard"
STEPS = 16
JOB = """\
name: {name}
resources: {{nodes: {nodes}, ranks_per_node: 2}}
parallelism:
  activation_checkpointing: none
  cpu_offload: false
  gradient_sync: last
train:
  model: {{layers: {layers}, heads: 4, width: {width}, context: 64, vocab_size: {vocab}}}
  data: {{synthetic: {{samples: 512}}}}
  batch: {{micro: {micro}, accumulation: 1}}
  steps: {steps}
"""
# Between two peaks that are nearer than this there is no limit: both vary by 2 or 3 MiB in 100.
APART = 1.06
LEAST_SHARE = 0.9
NOISE = 0.06  # two runs of one cell have differed by 12 %: each may be off by this much
LEAST_CELLS = 10


@dataclass(frozen=True)
class Model:
    """Sizes of a bundled GPT, and the sequences of a rank."""

    name: str
    layers: int
    width: int
    vocab: int
    micro: int

    def write(self, folder: Path, nodes: int) -> Path:
        """Write the job file of this model on so many nodes."""
        path = folder / f"{self.name}-{nodes}.yaml"
        sizes = {"layers": self.layers, "width": self.width, "vocab": self.vocab}
        name = path.stem
        text = JOB.format(name=name, nodes=nodes, micro=self.micro, steps=STEPS, **sizes)
        path.write_text(text)
        return path


JUDGED = (
    Model("words", 2, 256, 65536, 1),
    Model("blocks", 6, 448, 2048, 1),
    Model("batch", 8, 384, 4096, 4),
)
CALIBRATION = Model("other", 5, 320, 12288, 2)


@dataclass(frozen=True)
class Shape:
    """So many nodes of two ranks.

    Args:
        strategies: all that are possible there.
        calibrating: those of the runs of another model.
    """

    nodes: int
    strategies: str
    calibrating: str
    models: Sequence[Model]


# Runs of four ranks take twice as long as those of two: there are fewer, to stay within 15 minutes.
SHAPES = (
    Shape(1, THREE, THREE, JUDGED),
    Shape(2, f"{THREE},hybrid_shard", "ddp,full_shard,hybrid_shard", JUDGED[1:]),
)


@dataclass(frozen=True)
class Verdict:
    """One cell: a model on some nodes under a memory limit.

    Args:
        right: the fastest measured strategy that fits; tied: the next one is as fast within the
            noise.
        advised: what `strategy: auto` takes; "nothing" where it says that nothing fits.
    """

    model: str
    nodes: int
    limit_bytes: int
    right: str
    step_s: float
    tied: str
    advised: str

    @property
    def counts(self) -> bool:
        return not self.tied


def bench(job: Path, name: str, *words: str) -> list[Row]:
    """Run `orchestrate bench` under a name in the job's folder; all rows that are there."""
    command = [str(Path(sys.executable).with_name("orchestrate")), "bench", job.name, *words]
    command += ["--set", f"name={name}", "--steps", str(STEPS), "-o", f"{name}-bench"]
    command.append("--retry")
    done = subprocess.run(
        command, cwd=job.parent, stdout=subprocess.DEVNULL, check=False, timeout=3600
    )
    data: Any = json.loads((job.parent / f"{name}-bench/bench.json").read_text())
    rows = [row_of(one) for one in data["rows"]]
    failed = [f"{row.run}: {row.reason}" for row in rows if row.state != DONE]
    if done.returncode:
        raise SystemExit("\n".join(["not all runs of the bench ended well:", *failed]))
    return [_by_cpu(row) for row in rows] if BY_CPU in sys.argv else rows


def _by_cpu(row: Row) -> Row:
    """The row with seconds of CPU for those of the clock, which other programs lengthen."""
    cpu_s = row.measured.cpu_s or 0.0
    return replace(row, measured=replace(row.measured, step_s=cpu_s, low_s=cpu_s, high_s=cpu_s))


def calibrated(folder: Path, shape: Shape) -> str:
    """Return the profile's `hardware` lines for a shape on this machine, as `bench --calibrate`
    makes them of all these runs."""
    job = CALIBRATION.write(folder, shape.nodes)
    bench(job, job.stem, "--strategies", "ddp", "--layers", "4", "--micro-batch", "8")
    rows = bench(
        job, job.stem, "--strategies", shape.calibrating, "--layers", "2,6", "--micro-batch", "2"
    )
    found = fit(observations(Asked(job, None, None, (), STEPS), rows))
    print(f"# {shape.nodes} node(s), errors of the fit: {[round(e, 3) for e in found.errors]}")
    print(found.yaml, flush=True)
    return found.yaml


def judged(job: Path, shape: Shape, rounds: int) -> list[Row]:
    """Return of each strategy the fastest of some runs: what else a machine does only slows."""
    found: dict[str, Row] = {}
    for number in range(1, rounds + 1):
        name = f"{job.stem}-r{number}"
        for row in bench(job, name, "--strategies", shape.strategies):
            known = found.setdefault(row.cell.strategy, row)
            if (row.measured.step_s or 0.0) < (known.measured.step_s or 0.0):
                found[row.cell.strategy] = row
    return list(found.values())


def limits(rows: Sequence[Row]) -> list[int]:
    """Return a memory limit between each two peaks that are apart, and one above all."""
    peaks = sorted(row.measured.peak_bytes or 0 for row in rows)
    pairs = zip(peaks, [*peaks[1:], peaks[-1] * APART**2], strict=True)
    return [int((low * high) ** 0.5) for low, high in pairs if high > low * APART]


def verdicts(
    model: str, nodes: int, rows: Sequence[Row], job: Path, hardware: str
) -> Iterator[Verdict]:
    """Yield the cells of one model on so many nodes."""
    for limit in limits(rows):
        fitting = [row for row in rows if (row.measured.peak_bytes or 0) <= limit]
        first, *others = sorted(fitting, key=lambda row: row.measured.step_s or 0.0)
        tied = next((row.cell.strategy for row in others if _tied(first, row)), "")
        took = advised(job, hardware, limit)
        right, step_s = first.cell.strategy, first.measured.step_s or 0.0
        yield Verdict(model, nodes, limit, right, step_s, tied, took)


def _tied(first: Row, other: Row) -> bool:
    """Whether one is not slower by more than the noise, or the quartiles of both overlap."""
    one, two = first.measured, other.measured
    overlap = (one.high_s or 0.0) >= (two.low_s or 0.0)
    return overlap or (two.step_s or 0.0) <= (one.step_s or 0.0) * (1 + NOISE)


def advised(job: Path, hardware: str, limit_bytes: int) -> str:
    """Return what `strategy: auto` takes where a rank has so much memory."""
    memory = f"  gpu_memory: {round(limit_bytes / FITS)}B\n"
    try:
        return _loaded(job, hardware + memory, "auto").resolved.spec.parallelism.strategy
    except FaultsError as error:
        print(error, file=sys.stderr)
        return "nothing"


def foretold(row: Row, job: Path, hardware: str) -> Row:
    """Return the row with what the plan says of the calibrated machine."""
    loaded = _loaded(job, hardware, row.cell.strategy)
    spec = loaded.resolved.spec
    facts = hardware_of(spec, loaded.profile)
    return replace(row, planned=planned(estimate(Setting.of(spec), outline_of(spec, job), facts)))


def _loaded(job: Path, hardware: str, strategy: str) -> Loaded:
    clusters = job.with_name(f"{job.stem}-clusters.yaml")
    lines = "".join(f"    {line}\n" for line in hardware.splitlines())
    clusters.write_text(f"default: here\nclusters:\n  here:\n    target: local\n{lines}")
    return load_job(job, None, str(clusters), [f"parallelism.strategy={strategy}"])


def main(folder: Path, rounds: int) -> None:
    began = time.monotonic()
    rows: dict[tuple[str, int], list[Row]] = {}
    found: list[Verdict] = []
    hardware: dict[int, str] = {}
    for shape in SHAPES:
        nodes = shape.nodes
        hardware[nodes] = calibrated(folder, shape)
        for model in shape.models:
            job = model.write(folder, nodes)
            seen = judged(job, shape, rounds)
            here = [foretold(row, job, hardware[nodes]) for row in seen]
            rows[model.name, nodes] = here
            found += verdicts(model.name, nodes, here, job, hardware[nodes])
            PAGE.write_text(page(rows, found, hardware, time.monotonic() - began))
    print(PAGE.read_text())
    counted = [one for one in found if one.counts]
    good = sum(one.advised == one.right for one in counted)
    if len(counted) < LEAST_CELLS or good < LEAST_SHARE * len(counted):
        wanted = f"{LEAST_SHARE:.0%} of at least {LEAST_CELLS} are wanted"
        raise SystemExit(f"{good} of {len(counted)} cells are right: {wanted}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="Keep the runs here, and go on from them.")
    parser.add_argument("--rounds", type=int, default=1, help="Runs of each cell.")
    words = "Compare seconds of CPU of a step: for a machine that has other work too."
    parser.add_argument(BY_CPU, action="store_true", help=words)
    given = parser.parse_args()
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
        main(given.folder, given.rounds)
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made), given.rounds)
