"""`python -m benchmarks`: all figures of the README as one table."""

from __future__ import annotations

from benchmarks import cli, plan, slurm, step
from benchmarks.paired import machine

HEAD = """\
| what (a : b) | a | b | ratio (95 % interval of the median) | allowed |
|---|---|---|---|---|"""

if __name__ == "__main__":
    print(HEAD)
    for part in (cli, plan, slurm, step):
        for row in part.rows():
            print(row, flush=True)
    print(f"\n{machine()}")
