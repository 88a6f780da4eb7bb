"""What a run's state is, from what controllers, kubelets, the scheduler and Kueue write."""

from __future__ import annotations

from typing import Any

import pytest

from k8s.discovery import Json
from k8s.shapes import (
    CANCELLED,
    QUEUE,
    T0,
    T1,
    T2,
    condition,
    event,
    finished,
    live,
    pod,
    running,
    unscheduled,
    waiting,
    workload,
)
from orchestrator.backends.base import State
from orchestrator.backends.kubernetes_kinds import TARGETS
from orchestrator.backends.kubernetes_status import Seen, status_of, unanswered

ALL = sorted(TARGETS)
# The condition of each kind that says that it is done, failed or suspended: type and reason.
DONE = {"job": ("Complete", "CompletionsReached"), "jobset": ("Completed", "AllJobsCompleted"),
        "trainjob": ("Complete", "AllJobsCompleted"),
        "pytorchjob": ("Succeeded", "PyTorchJobSucceeded")}  # fmt: skip
FAILED = {"job": ("Failed", "BackoffLimitExceeded"), "jobset": ("Failed", "ReachedMaxRestarts"),
          "trainjob": ("Failed", "FailedJobs"),
          "pytorchjob": ("Failed", "PyTorchJobFailed")}  # fmt: skip
SUSPENDED = {"job": ("Suspended", "JobSuspended"), "jobset": ("Suspended", "SuspendedJobs"),
             "trainjob": ("Suspended", "Suspended"),
             "pytorchjob": ("Suspended", "PyTorchJobSuspended")}  # fmt: skip


def told(
    target: str, obj: Json | None, *pods: Json, events: tuple[Json, ...] = (), **more: Any
) -> tuple[State, str]:
    status = status_of(Seen(TARGETS[target], "demo", obj, pods, events, **more))
    assert status.run == "demo"
    return status.state, status.reason


@pytest.mark.parametrize("target", ALL)
def test_the_life_of_a_run(target: str) -> None:
    created = condition("Created", "PyTorchJobCreated")
    shown = (created,) if target == "pytorchjob" else ()
    assert told(target, live(target, *shown))[0] is State.PENDING
    assert told(target, live(target), running(target, 0), running(target, 1)) == (
        State.RUNNING, "2/2 pods ready",
    )  # fmt: skip
    done = live(target, condition(*DONE[target]))
    assert told(target, done, finished(target, 0, 0), finished(target, 1, 0)) == (
        State.DONE, "done",
    )  # fmt: skip
    assert told(target, done) == (State.DONE, "done")  # its pods were cleaned up


@pytest.mark.parametrize("target", ALL)
def test_a_failure_names_who_was_first(target: str) -> None:
    type_, reason = FAILED[target]
    pods = finished(target, 0, 1, at=T2), finished(target, 1, 1, at=T1)
    state, words = told(target, live(target, condition(type_, reason)), *pods)
    assert state is State.FAILED
    assert words.startswith("node 1 (pod demo-1 on gpu-7): exit code 1 (failed, and nothing is")
    assert words.endswith(f"({reason})")


@pytest.mark.parametrize("target", ALL)
def test_suspended_by_a_person_and_cancelled(target: str) -> None:
    obj = live(target, condition(*SUSPENDED[target]), suspend=True)
    assert told(target, obj)[0] is State.SUSPENDED
    stopping = told(target, {**obj}, running(target, 0))
    assert stopping[1].endswith("}'; pods that are still stopping: 1")
    obj = live(target, condition(*SUSPENDED[target]), suspend=True, annotations=CANCELLED)
    assert told(target, obj, running(target, 0))[0] is State.RUNNING
    assert told(target, obj) == (State.CANCELLED, "submit it again to continue")
    assert told(target, obj, finished(target, 0, 203))[0] is State.CANCELLED
    # node 0 was done before the cancel came
    assert told(target, obj, finished(target, 0, 0))[0] is State.DONE


@pytest.mark.parametrize("target", ALL)
def test_an_object_that_is_gone_is_lost(target: str) -> None:
    state, words = told(target, None)
    assert state is State.LOST
    assert words.startswith(f"there is no {TARGETS[target].kind.name} demo in the cluster")


@pytest.mark.parametrize("target", ALL)
@pytest.mark.case("L39")
def test_kueue_holds_it_back(target: str) -> None:
    obj = live(target, condition(*SUSPENDED[target]), suspend=True, labels=QUEUE)
    no = condition("QuotaReserved", "Pending", "couldn't assign flavors to pod set node: "
                   "insufficient unused quota for nvidia.com/gpu in flavor h100, 8 more needed",
                   "False")  # fmt: skip
    state, words = told(target, obj, workload=workload(no))
    assert (state, words[:42]) == (State.QUEUED, "couldn't assign flavors to pod set node: i")
    reserved, admitted = condition("QuotaReserved"), condition("Admitted")
    checks = [{"name": "provisioning", "state": "Pending", "message": "no capacity yet"}]
    held = workload(reserved, admissionChecks=checks)
    state, words = told(target, obj, workload=held)
    assert state is State.QUEUED
    assert words.endswith("waits for the admission check provisioning (Pending): no capacity yet")
    # admitted, and suspended all the same: neither queued nor running
    state, words = told(target, obj, workload=workload(reserved, admitted))
    assert state is State.SUSPENDED
    assert words.startswith("Kueue has admitted it, and it is suspended all the same")
    evicted = condition("Evicted", "Preempted", "Preempted to accommodate a workload")
    state, words = told(target, obj, workload=workload(no, evicted))
    assert (state, words.startswith("it was preempted: ")) == (State.QUEUED, True)
    state, words = told(target, obj, workload=workload(no, active=False))
    assert (state, "spec.active" in words) == (State.SUSPENDED, True)
    state, words = told(target, obj)
    assert state is State.QUEUED
    assert "no Workload for it yet (queue gpus)" in words
    assert TARGETS[target].kind.name.lower() in words


@pytest.mark.case("L38")
def test_an_elastic_job_is_judged_by_the_pod_of_node_0() -> None:
    spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}}
    shown = live("pytorchjob", condition("Running"), spec=spec)
    done = live("pytorchjob", condition("Succeeded"), spec=spec)

    def at(obj: Json, *pods: Json) -> tuple[State, str]:
        return told("pytorchjob", obj, *pods)

    def up(node: int) -> Json:
        return running("pytorchjob", node, elastic=True)

    def off(node: int, code: int) -> Json:
        return finished("pytorchjob", node, code, elastic=True)

    # shown Running for ever, and all is over (kubeflow/trainer#1711)
    assert at(shown, off(0, 0), off(1, 0)) == (State.DONE, "done")
    assert at(shown, off(0, 0), up(1)) == (
        State.RUNNING, "node 0 is done; still ending: node 1",
    )  # fmt: skip
    # shown Succeeded, and it is not (kubeflow/trainer#1751)
    state, words = at(done, off(0, 1), off(1, 0))
    assert (state, words[:44]) == (State.FAILED, "PyTorchJob says Succeeded, but node 0 (pod d")
    assert at(done, up(0), off(1, 0)) == (
        State.RUNNING, "PyTorchJob says Succeeded, but some of its pods are still there: 1",
    )  # fmt: skip


@pytest.mark.parametrize("target", ALL)
def test_an_elastic_run_trains_with_its_fewest_nodes(target: str) -> None:
    """What the pods were told counts: only a PyTorchJob's object says how few are enough."""
    spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}} if target == "pytorchjob" else None
    obj, told_words = live(target, spec=spec), ("--nnodes", "2", "--sizes", "1,2")
    up = running(target, 0, elastic=True, words=told_words)
    assert told(target, obj, up) == (State.RUNNING, "1/2 pods ready")
    not_yet = unscheduled(target, 1, "0/1 nodes are available: 1 Too many pods.")
    assert told(target, obj, up, not_yet) == (State.RUNNING, "1/2 pods ready")
    fixed = running(target, 0, words=("--nnodes", "2"))
    state, words = told(target, obj, fixed, not_yet)
    assert (state, words.startswith("1/2 pods ready; node 1")) == (State.PENDING, True)
    # a single pod of a TrainJob, whose object does not say how many there will be
    assert told(target, obj, fixed)[0] is State.PENDING


@pytest.mark.parametrize(
    ("target", "obj", "words"),
    [
        ("jobset", live("jobset", restarts=2), "started again 2 times"),
        ("job", live("job", failed=2), "started again 1 time"),
        ("pytorchjob", live("pytorchjob", condition("Restarting", "PyTorchJobRestarting")), ""),
    ],
)
def test_between_two_attempts(target: str, obj: Json, words: str) -> None:
    state, reason = told(target, obj)
    assert state is State.RESTARTING
    assert words in reason
    creating = pod(target, 1, waiting("ContainerCreating"), phase="Pending")
    state, reason = told(target, obj, running(target, 0), creating)
    assert state is State.RESTARTING
    assert reason.startswith("1/2 pods ready; node 1: its containers are being made")
    assert told(target, obj, running(target, 0), running(target, 1))[0] is State.RUNNING


def test_a_failed_pod_whose_peers_still_end_is_named() -> None:
    state, words = told("job", live("job"), running("job", 0), finished("job", 1, 129))
    assert state is State.RESTARTING
    assert words == (
        "node 1 (pod demo-1 on gpu-7): exit code 129 (failed, to be started again); 1/2 pods ready"
    )


def test_the_launchers_last_words_tell_why_no_attempt_began() -> None:
    failed = live("job", condition("Failed", "PodFailurePolicy"))
    log = b"[node] only 1 of 2 nodes came within 300 s\n[rank 0 a] not these\n\n"
    state, words = told("job", failed, finished("job", 0, 1), log=log)
    assert state is State.FAILED
    assert words.startswith("only 1 of 2 nodes came within 300 s; node 0 (pod demo-0 on gpu-7): ")
    words = told("job", failed, finished("job", 0, 1), log=b"python: no module trainer")[1]
    assert words.startswith("python: no module trainer; node 0")
    assert told("job", live("job"), running("job", 0), running("job", 1), log=log)[1] == (
        "2/2 pods ready"
    )


def test_a_disrupted_pod_does_not_count_as_failed_and_is_made_anew() -> None:
    target = condition("DisruptionTarget", "PreemptionByScheduler")
    old = finished("job", 1, 203, name="demo-1-old", conditions=(target,))
    new = pod("job", 1, waiting("ContainerCreating"), phase="Pending", created=T2)
    state, words = told("job", live("job"), running("job", 0), old, new)
    assert (state, words[-20:]) == (State.RESTARTING, "started again 1 time")


def test_pods_of_an_earlier_attempt_do_not_count() -> None:
    old = [finished("job", n, 129, name=f"demo-{n}-old") for n in (0, 1)]
    new = [running("job", n, created=T2, name=f"demo-{n}-new") for n in (0, 1)]
    assert told("job", live("job", failed=2), *new, *old) == (State.RUNNING, "2/2 pods ready")


def test_the_log_tells_the_attempt_the_step_and_the_end() -> None:
    log = (
        b'[rank 0 a] [metrics] {"event": "start", "attempt": 2, "steps": 40, "step": 8}\n'
        b'[rank 0 a] [metrics] {"step": 12, "attempt": 2, "loss": 1.5}\n'
        b'[rank 1 a] {"step": 99}\n'
        b"[node] attempt 2 ended with 1: rank 3 on node 1 (b): boom\n"
    )
    obj = live("job", condition("Failed", "PodFailurePolicy"))
    seen = Seen(TARGETS["job"], "demo", obj, [finished("job", 0, 1)], log=log)
    status = status_of(seen)
    assert (status.attempt, status.step, status.steps) == (2, 12, 40)
    assert status.reason.startswith("rank 3 on node 1 (b): boom; node 0 (pod demo-0 on gpu-7)")


def test_events_about_an_earlier_object_or_another_run_do_not_count() -> None:
    quota = "Error creating: pods is forbidden: exceeded quota: team, requested: pods=1"
    old = event("demo", "FailedCreate", quota, at="2026-11-29T10:00:00Z")
    other = event("demo-2", "FailedCreate", quota)
    assert told("job", live("job"), events=(old, other)) == (
        State.PENDING, "its pods are being made",
    )  # fmt: skip
    now = event("demo", "FailedCreate", quota, at=T0)
    assert told("job", live("job"), events=(old, now))[1].startswith("its pods are refused: the na")


def test_no_answer_is_unknown() -> None:
    status = unanswered("demo", "context test: no answer\x1b[31m")
    assert (status.state, status.reason) == (State.UNKNOWN, "context test: no answer?[31m")
