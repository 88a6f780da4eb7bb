"""Questions to a cluster, by the command line: `make test-k8s` asks a real one, for all kinds of
objects; the one of tests/k8s/lab.py is asked each for one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from k8s.live.site import START_S, Run, Site, inspector, told_outcome
from k8s.manifests import JOB, KINDS, STEPS
from slurm.training import Outcome, at

TEXT = JOB.replace("name: pods\n", "")
HELD = 4  # the step that the log tells of before the model waits in the next


def on(target: str) -> pytest.MarkDecorator:
    """A real cluster with each target, and the one of this machine with one of them."""
    real = [pytest.param(("real", kind), kind, marks=pytest.mark.k8s_live) for kind in KINDS]
    here = pytest.param(("lab", target), target, marks=[pytest.mark.e2e, pytest.mark.pods])
    ids = [*(f"real-{kind}" for kind in KINDS), f"lab-{target}"]
    return pytest.mark.parametrize(("site", "target"), [*real, here], indirect=["site"], ids=ids)


def held(site: Site, target: str) -> Run:
    """A run that waits in its fifth step until it is asked to stop."""
    run = site.begin(target, TEXT, [at(1, 0, HELD + 1, "wait")])
    assert run.name in run.submit()
    run.wait_for(lambda status: (status["step"] or 0) >= HELD, START_S)
    assert run.status()["state"] == "RUNNING"
    return run


def check_followed(lines: list[str]) -> None:
    """Both attempts' metrics are there to their last line, each once."""
    metrics = [line for line in lines if " | [metrics] {" in line]
    assert len(metrics) == len(set(metrics)) > 2
    ends = [line for line in metrics if '"event": "end"' in line]
    told = [(line.split(" | ")[0], "drained" in line) for line in ends]
    assert told == [("[1] rank 0", True), ("[2] rank 0", False)], lines


@pytest.mark.e2e
@pytest.mark.pods
def test_a_pod_would_tell_of_a_run_what_is_seen_here(local_run: Path, straight: Outcome) -> None:
    command = [sys.executable, "-c", inspector(), str(local_run)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told_outcome(printed) == straight


def shows_what_it_does(run: Run) -> None:
    """The commands that only look, while the run waits."""
    assert run.name in run.orchestrate("list")
    checkpoints = run.orchestrate("checkpoints", run.name)
    assert re.search(rf"(?m)^{HELD} +1 .* whole$", checkpoints), checkpoints
    logs = run.orchestrate("logs", run.name)
    assert re.search(r"(?m)rank 0 \| \[metrics\] ", logs), logs


@on("trainjob")
def test_a_pod_that_is_deleted_stops_all_and_the_run_goes_on(
    site: Site, target: str, straight: Outcome
) -> None:
    run = held(site, target)
    assert "already" in run.submit()
    shows_what_it_does(run)
    last = site.pods(run.name)[-1]["metadata"]["name"]
    with run.followed() as lines:
        site.core.delete_namespaced_pod(last, site.namespace)
        status = run.ends("DONE")
    check_followed(lines)
    assert status["attempt"] == 2
    assert status["step"] == STEPS
    assert "nothing to start" in run.submit()
    assert site.outcome(run.name) == straight


@on("job")
def test_a_run_that_is_cancelled_goes_on_when_it_is_submitted_again(
    site: Site, target: str, straight: Outcome
) -> None:
    run = held(site, target)
    assert "CANCELLED" in run.orchestrate("cancel", run.name)
    run.ends("CANCELLED")
    run.submit()
    status = run.ends("DONE")
    assert status["attempt"] == 2
    assert site.outcome(run.name) == straight


@on("pytorchjob")
def test_a_fault_in_the_job_ends_it_for_good(site: Site, target: str) -> None:
    run = site.begin(target, TEXT.replace("acting:build", "acting:built"), [])
    run.orchestrate("submit", "job.yaml", "--watch", code=1)
    status = run.ends("FAILED")
    assert "built" in status["reason"] or "78" in status["reason"], status
    assert status["attempt"] == 1
