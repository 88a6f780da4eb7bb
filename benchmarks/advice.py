"""Advice against measurement on the CPU: `python -m benchmarks.advice`; writes
docs/advice-measured.md.

All strategies of some models are run by `orchestrate bench`, on one simulated node and on two, in
rounds that follow one another. The planner gets its figures of the machine from
`bench --calibrate` on another model. Then memory limits are laid between the measured peaks, and
for each the strategy that `strategy: auto` takes is compared with the fastest measured one that
fits.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.advice_page import page
from benchmarks.advice_rule import (
    LEAST_CELLS,
    LEAST_SHARE,
    Rounds,
    Verdict,
    fastest,
    limits,
    score,
)
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
FOLDER = ROOT / "build/advice"
STEPS = 9  # of which the last four count, in each round
ROUNDS = 2
LONGEST_S = 1800  # of one call of `orchestrate bench`
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
        text = JOB.format(name=path.stem, nodes=nodes, micro=self.micro, steps=STEPS, **sizes)
        path.write_text(text)
        return path


BLOCKS = Model("blocks", 6, 448, 2048, 1)
BATCH = Model("batch", 8, 384, 4096, 4)
DEEP = Model("deep", 12, 320, 2048, 1)
WORDS = Model("words", 2, 256, 65536, 1)
CALIBRATION = Model("other", 5, 320, 12288, 2)
THREE = "ddp,shard_grad_op,full_shard"


@dataclass(frozen=True)
class Shape:
    """So many nodes of two ranks.

    Args:
        strategies: all that are possible there.
    """

    nodes: int
    strategies: str
    models: Sequence[Model]


# Runs of four ranks take twice as long as those of two: there are fewer, to stay within 13 minutes.
SHAPES = (
    Shape(1, THREE, (BLOCKS, BATCH, DEEP, WORDS)),
    Shape(2, f"{THREE},hybrid_shard", (BLOCKS, BATCH)),
)


@dataclass
class Proof:
    """What was found so far.

    Args:
        by_cpu: times are seconds of CPU, in place of the clock.
        resumed: some runs were there before.
        rows: of all rounds, by model and nodes.
        missing: what did not end well, and why.
    """

    folder: Path
    by_cpu: bool
    resumed: bool
    began_s: float = field(default_factory=time.monotonic)
    rows: dict[tuple[str, int], list[Rounds]] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    hardware: dict[int, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self.began_s

    def say(self, text: str) -> None:
        print(f"{self.spent_s / 60:4.1f} min: {text}", file=sys.stderr, flush=True)

    def bench(self, job: Path, name: str, *words: str) -> list[Row]:
        """Run `orchestrate bench` under a name; the rows of its folder that are done."""
        self.say(f"{name} {' '.join(words)}")
        folder = job.parent / f"{name}-bench"
        command = [str(Path(sys.executable).with_name("orchestrate")), "bench", job.name, *words]
        command += ["--set", f"name={name}", "--steps", str(STEPS), "-o", folder.name, "--retry"]
        subprocess.run(
            command, cwd=job.parent, stdout=subprocess.DEVNULL, check=False, timeout=LONGEST_S
        )
        data: Any = json.loads((folder / "bench.json").read_text())
        rows = [row_of(one) for one in data["rows"]]
        failed = [row for row in rows if row.state != DONE]
        self.missing += [f"{row.run}: {row.state}: {row.reason}" for row in failed]
        return [row for row in rows if row.state == DONE]

    def calibrate(self, shape: Shape) -> None:
        """Learn a shape's `hardware` lines, as `bench --calibrate` makes them of these runs."""
        job = CALIBRATION.write(self.folder, shape.nodes)
        name = job.stem
        self.bench(job, name, "--strategies", "ddp", "--layers", "4", "--micro-batch", "8")
        more = ["--layers", "2,6", "--micro-batch", "2"]
        rows = self.bench(job, name, "--strategies", shape.strategies, *more)
        if self.by_cpu:
            rows = [_by_cpu(row) for row in rows]
        found = fit(observations(Asked(job, None, None, (), STEPS), rows), one_link=True)
        self.hardware[shape.nodes] = found.yaml
        self.say(f"errors of the fit: {[round(error, 2) for error in found.errors]}\n{found.yaml}")

    def judge(self, shape: Shape, model: Model) -> None:
        """Run all rounds of a model, and add its cells; without a strategy's rounds, none."""
        job, hardware = model.write(self.folder, shape.nodes), self.hardware[shape.nodes]
        by_strategy: dict[str, list[Row]] = {name: [] for name in shape.strategies.split(",")}
        for number in range(1, ROUNDS + 1):
            for row in self.bench(job, f"{job.stem}-r{number}", "--strategies", shape.strategies):
                by_strategy[row.cell.strategy].append(foretold(row, job, hardware))
        if any(len(rows) < ROUNDS for rows in by_strategy.values()):
            self.missing.append(f"{job.stem}: not judged")
            return
        found = [Rounds.of(rows, self.by_cpu) for rows in by_strategy.values()]
        self.rows[model.name, shape.nodes] = found
        for limit in limits(found):
            first, tied = fastest(found, limit)
            took = advised(job, hardware, limit)
            one = Verdict(model.name, shape.nodes, limit, first.strategy, first.step_s, tied, took)
            self.verdicts.append(one)
            self.say(f"{limit >> 20} MiB: {first.strategy} {tied or ''}, {took}: {one.word}")


def _by_cpu(row: Row) -> Row:
    return replace(row, measured=replace(row.measured, step_s=row.measured.cpu_s))


def advised(job: Path, hardware: str, limit_bytes: int) -> str:
    """Return what `strategy: auto` takes where a rank has so much memory to count on."""
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


def wanted(names: Sequence[str]) -> Iterator[tuple[Shape, list[Model]]]:
    """Yield the shapes that have any of these models; no names: all."""
    for shape in SHAPES:
        models = [model for model in shape.models if not names or model.name in names]
        if models:
            yield shape, models


def main(folder: Path, names: Sequence[str], by_cpu: bool, out: Path, minutes: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    proof = Proof(folder, by_cpu, resumed=any(folder.glob("*-bench")))
    for shape, models in wanted(names):
        proof.calibrate(shape)
        for model in models:
            if proof.spent_s > 60 * minutes:
                proof.missing.append(
                    f"{model.name}-{shape.nodes}: not begun in {minutes:g} minutes"
                )
            else:
                proof.judge(shape, model)
            out.write_text(page(proof))
    print(out.read_text())
    right, counted = score(proof.verdicts)
    if counted < LEAST_CELLS or right < LEAST_SHARE * counted:
        least = f"{LEAST_SHARE:.0%} of at least {LEAST_CELLS} are wanted"
        raise SystemExit(f"{right} of {counted} cells are right: {least}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    words = "Runs are kept here, and a second call goes on from them (build/advice)."
    parser.add_argument("--folder", type=Path, default=FOLDER, help=words)
    parser.add_argument("--models", default="", help="Only these, with commas between them.")
    parser.add_argument("--page", type=Path, default=PAGE, help="Where the page is written.")
    words = "No model is begun later than this; it takes some one minute each (12)."
    parser.add_argument("--minutes", type=float, default=12, help=words)
    words = "Compare seconds of CPU of a step: for a machine that has other work too."
    parser.add_argument("--by-cpu", action="store_true", help=words)
    given = parser.parse_args()
    chosen = [name for name in given.models.split(",") if name]
    main(given.folder.resolve(), chosen, given.by_cpu, given.page, given.minutes)
