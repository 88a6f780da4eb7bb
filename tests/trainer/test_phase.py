"""Phases are told to listeners as they come."""

from __future__ import annotations

from pathlib import Path

from runs import Run, configuration
from trainer import phase


def note(run: Run, name: str, step: int) -> None:
    with (run.run_dir / "phases").open("a") as file:
        file.write(f"{name} {step}\n")


def test_phases_of_a_run(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.finish(configuration(num_ranks=1, steps=2), listener=note)
    lines = (run.run_dir / "phases").read_text().splitlines()
    assert lines == ["start 0", "rendezvous 0", "load 0", "restore 0", "evaluation 0", "data 0",
                     "step 0", "data 1", "step 1", "evaluation 2",
                     "save 2", "save 2", "publish 2", "prune 2", "exit 2"]  # fmt: skip
    assert {line.split()[0] for line in lines} == set(phase.PHASES)
