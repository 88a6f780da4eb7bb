"""Start-up of the command: `--version` against click's import, `render` against torchx's dry run.

torchx is installed in an environment of its own (name it by TORCHX, or it is made in build/torchx).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.paired import compare, time_commands

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PAIRS = 31

JOB = """\
name: bench
resources: {nodes: 4, ranks_per_node: 8}
train: {model: {preset: tiny}, data: {text: "*.txt"}, steps: 100}
"""


def rows() -> list[str]:
    """Measure, and return lines for the README's table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.yaml").write_text(JOB)
        (folder / "t.py").touch()
        orchestrate = str(BIN / "orchestrate")
        version = time_commands(
            [orchestrate, "--version"], [sys.executable, "-c", "import click"], PAIRS, folder
        )
        torchx = ["run", "-s", "slurm", "--dryrun", "dist.ddp", "-j", "4x8", "--script", "t.py"]
        render = time_commands(
            [orchestrate, "render", "job.yaml"], [_torchx(), *torchx], PAIRS, folder
        )
    return [
        compare(*version).row("`orchestrate --version` : `python -c 'import click'`", "1.5"),
        compare(*render).row("`orchestrate render`, 4 nodes : `torchx run --dryrun`", "0.4"),
    ]


def _torchx() -> str:
    if given := os.environ.get("TORCHX"):
        return given
    folder = ROOT / "build" / "torchx"
    if not (folder / "bin" / "torchx").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "torchx-nightly"]
        subprocess.run(pip, check=True)
    return str(folder / "bin" / "torchx")


if __name__ == "__main__":
    print("\n".join(rows()))
