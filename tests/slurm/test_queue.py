"""timeouts.queue on a real Slurm."""

from __future__ import annotations

import pytest

from orchestrator.backends.base import State
from orchestrator.cli.watch import watch_run
from slurm.probing import PAIR, Probe


def test_a_run_that_waits_for_too_long_is_cancelled_by_who_follows_it(
    probe: Probe, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {**PAIR, "timeouts": {**PAIR["timeouts"], "queue": "2s"}}
    handle = probe.submit("done", job, begin="now+1hour")
    assert watch_run(probe.backend, handle) == 1
    assert probe.status(handle).state is State.CANCELLED
    said = capsys.readouterr().out
    assert "of timeouts.queue (2s): it is cancelled" in said
    assert not (handle.run_dir / "attempts").exists()
