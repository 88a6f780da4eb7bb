"""What is done outside of a run: `orchestrate-trainer export | samples | inspect`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer import sample_log
from trainer.contract import ConfigurationError

if TYPE_CHECKING:  # torch takes a second to import, and --help should not
    from trainer.inspecting import Asked

PROGRAM = "orchestrate-trainer"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code: 0, 1 failure, 2 a fault in what is given."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    export = commands.add_parser(
        "export",
        help="write the weights of a checkpoint to one safetensors file",
        description="Write the weights of a checkpoint to one safetensors file, after a look at all"
        " of its hashes. A new run starts from such a file by train.model.init.",
    )
    export.add_argument(
        "source", type=Path, metavar="SOURCE",
        help="folder of a checkpoint, or of a run: its newest whole checkpoint",
    )  # fmt: skip
    export.add_argument("out", type=Path, metavar="OUT", help="the new file, OUT.safetensors")
    samples = commands.add_parser(
        "samples",
        help="tell whether each epoch took each sample once",
        description="Tell from the log that train.logging.samples makes, over all attempts of a"
        " run, whether an epoch took a sample twice or skipped one; exit code 1 if so.",
    )
    samples.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="folder of the run")
    _add_inspect(commands.add_parser(
        "inspect",
        help="write what the planner must know of a model of yours",
        description="Build a factory's model, without memory where its code allows that, and write"
        " its shapes, operations and activations to a file, for `orchestrate plan` and for"
        " parallelism.strategy: auto. To be run in the folder of the job file.",
    ))  # fmt: skip
    given = parser.parse_args(arguments)
    if given.command == "inspect":
        return _inspect(given)
    if given.command == "samples":
        return sample_log.main([str(given.run_dir)])
    return _export(given.source, given.out)


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", type=Path, nargs="?", metavar="CONFIG", help="trainer.json of the job"
    )
    parser.add_argument("--factory", metavar="MODULE:FUNCTION", help="instead of CONFIG")
    parser.add_argument("--args", default="{}", metavar="JSON", help="the factory's arguments")
    parser.add_argument("--context", type=int, metavar="N", help="tokens of one sequence")
    parser.add_argument(
        "--wrap", default="block", metavar="UNITS",
        help="units to shard: block (default), class:NAME,NAME or size:NUMBER",
    )  # fmt: skip
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE")


def _inspect(given: argparse.Namespace) -> int:
    from trainer.inspecting import write_inspected

    sys.path.append(str(Path.cwd()))  # last, as on a rank
    try:
        content, remarks = write_inspected(_asked(given), given.out)
    except (ConfigurationError, OSError) as error:
        print(f"{PROGRAM} inspect: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1
    for remark in remarks:
        print(f"{PROGRAM} inspect: {remark}", file=sys.stderr)
    units = [*content["units"], content["root"]]
    numbers = sum(math.prod(one["shape"]) for unit in units for one in unit["parameters"])
    flops = content["flops_per_token"]
    print(f"{given.out}: {numbers} parameters in {len(units)} unit(s), {flops:.4g} FLOPs a token")
    return 0


def _asked(given: argparse.Namespace) -> Asked:
    from trainer.inspecting import Asked, args_of, asked_of, wrap_of

    if (given.config is None) == (given.factory is None):
        raise ConfigurationError("give either CONFIG or --factory")
    if given.config is not None:
        return asked_of(given.config)
    if given.context is None or given.context < 1:
        raise ConfigurationError("--context: is needed with --factory, a number from 1")
    return Asked(given.factory, args_of(given.args), given.context, wrap_of(given.wrap))


def _export(source: Path, out: Path) -> int:
    # Late: torch takes a second to import, and --help should not.
    from trainer.checkpoint import BrokenCheckpoint
    from trainer.weights import export

    try:
        done = export(source, out)
    except (ConfigurationError, BrokenCheckpoint, OSError) as error:
        print(f"{PROGRAM} export: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1
    print(f"{out}: {done.num_tensors} tensors, {done.size_bytes} bytes, of {done.checkpoint}")
    return 0
