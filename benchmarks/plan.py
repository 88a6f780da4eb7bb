"""`orchestrate plan` of a large model on many nodes, with all its advice, against `--version`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.paired import compare, time_commands

PAIRS = 31

JOB = """\
name: bench
resources: {nodes: 16, gpus_per_node: 8, gpu_type: h100-sxm}
parallelism: {strategy: full_shard, precision: bf16}
train:
  model: {layers: 80, heads: 64, width: 8192, context: 4096, vocab_size: 128256}
  data: {text: "*.txt"}
  batch: {micro: 4, accumulation: 4}
  steps: 1000
"""


def rows() -> list[str]:
    """Measure, and return lines for the README's table."""
    orchestrate = str(Path(sys.executable).parent / "orchestrate")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.yaml").write_text(JOB)
        plan, version = [orchestrate, "plan", "job.yaml"], [orchestrate, "--version"]
        times = time_commands(plan, version, PAIRS, folder)
    what = "`orchestrate plan`, 65 billion parameters on 16 nodes : `orchestrate --version`"
    return [compare(*times).row(what, "a: 500 ms")]


if __name__ == "__main__":
    print("\n".join(rows()))
