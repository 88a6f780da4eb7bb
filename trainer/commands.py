"""What is done with a run's files outside of a run: `orchestrate-trainer export | samples`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer import sample_log
from trainer.contract import ConfigurationError

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
    given = parser.parse_args(arguments)
    if given.command == "samples":
        return sample_log.main([str(given.run_dir)])
    return _export(given.source, given.out)


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
