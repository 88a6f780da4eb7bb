"""Why pods wait and fail, in words; docs/kubernetes-states.md has what the code has."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s.discovery import Json
from k8s.shapes import (
    condition,
    ended,
    event,
    finished,
    live,
    pod,
    running,
    unscheduled,
    waiting,
)
from orchestrator.backends.base import State
from orchestrator.backends.kubernetes_kinds import TARGETS
from orchestrator.backends.kubernetes_pods import pod_facts
from orchestrator.backends.kubernetes_reasons import (
    CODES,
    ENDED,
    EVENTS,
    GIVEN_UP,
    TERMINATED,
    TEXT_LIMIT,
    WAITING,
    exit_words,
    refusal_words,
    scheduler_words,
)
from orchestrator.backends.kubernetes_status import Seen, judge

JOB = TARGETS["job"]
SECURITY = (
    'Error creating: pods "demo-worker-0" is forbidden: violates PodSecurity "restricted:latest": '
    'allowPrivilegeEscalation != false (container "init-pytorch" must set '
    "securityContext.allowPrivilegeEscalation=false)"
)


SCHEDULED = {
    "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) were unschedulable. "
    "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.":
    "of 3 nodes: 1: too little nvidia.com/gpu is free; 2: closed for new pods (cordoned)",
    "0/1 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: present}. no new "
    "claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful.":
    "of 1 nodes: 1: a taint that the pods do not bear: nvidia.com/gpu: present "
    "(kubernetes.tolerations)",
    "0/2 nodes are available: 2 node(s) had untolerated taint(s). no new claims to deallocate, "
    "preemption: 0/2 nodes are available.":
    "of 2 nodes: 2: taints that the pods do not bear (kubernetes.tolerations)",
    "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
    "1 Too many pods.":
    "of 2 nodes: 1: labels are not those that are asked for (kubernetes.node_selector, "
    "node_affinity, resources.gpu_type); 1: no room for another pod",
    "0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: "
    "0/4 nodes are available": "its volume claim is bound to no volume: `kubectl get pvc`",
    '0/4 nodes are available: persistentvolumeclaim "runs" not found.':
    "there is no volume claim runs",
    "no nodes available to schedule pods": "the cluster has no nodes",
    "3/2 tasks in gang unschedulable: new words": "3/2 tasks in gang unschedulable: new words",
    "0/3 nodes are available: 3 node(s) had something new.":
    "of 3 nodes: 3: node(s) had something new",
}  # fmt: skip


@pytest.mark.parametrize(("message", "words"), SCHEDULED.items())
def test_the_schedulers_words(message: str, words: str) -> None:
    assert scheduler_words(message) == words
    facts = pod_facts(JOB, unscheduled("job", 1, message))
    assert facts.why == words


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (('Error creating: pods "demo-0-x" is forbidden: exceeded quota: team-gpus, requested: '
         "requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=8, limited: 8"),
         "the namespace's quota team-gpus is used up"),
        (SECURITY, "the namespace's Pod Security level restricted does not let the pods in"),
        ('Error creating: admission webhook "policy.example.org" denied the request: no latest',
         "the webhook policy.example.org refuses the pods"),
        (('Error creating: pods "x" is forbidden: error looking up service account ns/train: '
         'serviceaccount "train" not found'), "there is no service account train"),
        ("Error creating: pods \"x\" is forbidden: no PriorityClass with name high was found",
         "there is no priority class high"),
        ('Error creating: pods "x" is forbidden: something new', "it is forbidden: something"),
        ("Error creating: etcd is full", "Error creating: etcd is full"),
    ],
)  # fmt: skip
def test_refused_pods(message: str, words: str) -> None:
    assert refusal_words(message).startswith(words)


@pytest.mark.parametrize("reason", ["FailedCreate", "FailedCreatePod"])
def test_the_operators_init_container_under_restricted(reason: str) -> None:
    seen = Seen(TARGETS["pytorchjob"], "demo", live("pytorchjob"), [],
                [event("demo", reason, SECURITY)])  # fmt: skip
    state, words = judge(seen)
    assert state is State.PENDING
    assert "level restricted" in words
    assert "init container" in words


def test_a_value_that_only_the_crd_accepts_leaves_a_blank_status() -> None:
    state, words = judge(Seen(TARGETS["pytorchjob"], "demo", live("pytorchjob"), []))
    assert state is State.PENDING
    assert "a value of the manifest is none that it knows" in words


@pytest.mark.parametrize("reason", sorted(WAITING))
@pytest.mark.parametrize("target", ["job", "pytorchjob"])
def test_each_reason_of_a_container_that_waits(target: str, reason: str) -> None:
    obj = pod(target, 1, waiting(reason, "the kubelet's words"), phase="Pending")
    why = pod_facts(TARGETS[target], obj).why
    words = WAITING[reason]
    expected = f"{reason}: {words}: the kubelet's words" if words else "its containers are being"
    assert why.startswith(expected)


def test_an_init_container_that_cannot_start_is_named() -> None:
    status = {"name": "init-pytorch", "state": waiting("ErrImagePull", "alpine:3.10: timeout")}
    obj = pod("pytorchjob", 1, waiting("PodInitializing"), phase="Pending",
              initContainerStatuses=[status])  # fmt: skip
    why = pod_facts(TARGETS["pytorchjob"], obj).why
    assert why.startswith("init container init-pytorch: ErrImagePull: the node cannot pull")
    status["state"] = {"running": {}}
    assert pod_facts(TARGETS["pytorchjob"], obj).why == "its init container init-pytorch runs"


def test_a_volume_that_cannot_be_mounted() -> None:
    obj = pod("job", 0, waiting("ContainerCreating"), phase="Pending")
    warnings = [event("demo-0", "FailedMount", 'MountVolume.SetUp failed for "runs"')]
    assert pod_facts(JOB, obj, warnings).why.startswith("FailedMount: a volume cannot be mounted:")
    other = [event("demo-1", "FailedMount", "no")]
    assert pod_facts(JOB, obj, other).why == "its containers are being made"


@pytest.mark.parametrize("reason", sorted(ENDED))
def test_what_ends_a_pod_from_outside(reason: str) -> None:
    by_reason = finished("job", 1, 137)
    by_reason["status"]["reason"] = reason
    target = condition("DisruptionTarget", reason)
    for obj in (by_reason, finished("job", 1, 143, conditions=(target,))):
        facts = pod_facts(JOB, obj)
        assert facts.why == f"{reason}: {ENDED[reason]}"
        assert facts.is_outside


def test_a_pod_of_which_no_container_is_known_any_more() -> None:
    lost = pod("job", 1, phase="Failed")
    lost["status"] |= {"reason": "NodeLost", "message": "Node gpu-7 is unresponsive"}
    facts = pod_facts(JOB, lost)
    assert (facts.code, facts.why) == (None, "NodeLost: its node does not answer")


def test_the_pod_that_ran_out_of_memory_is_to_blame() -> None:
    pods = [
        finished("job", 0, 129, at="2026-11-30T10:00:01Z"),
        finished("job", 1, 137, "OOMKilled"),
    ]
    failed = live("job", condition("Failed", "BackoffLimitExceeded"))
    state, words = judge(Seen(JOB, "demo", failed, pods))
    assert state is State.FAILED
    assert words.startswith("node 1 (pod demo-1 on gpu-7): OOMKilled: it took more memory")


def test_a_sidecar_keeps_a_pod_that_is_over() -> None:
    obj = pod("job", 0, ended(78), phase="Running")
    assert pod_facts(JOB, obj).code == 78


@pytest.mark.parametrize("code", [0, 1, 2, 78, 129, 134, 137, 139, 143, 203, 207, 255])
def test_exit_codes(code: int) -> None:
    words = exit_words(code)
    assert words.startswith(f"exit code {code}")
    assert ("(" in words) == (code in CODES or 128 < code < 193)


@given(st.text(max_size=2000), st.text(max_size=30))
def test_any_text_becomes_one_short_line(text: str, reason: str) -> None:
    obj = pod("job", 0, waiting(reason, text), phase="Pending")
    down = unscheduled("job", 1, text)
    gone = finished("job", 2, 3)
    gone["status"] |= {"reason": reason, "message": text}
    for words in (scheduler_words(text), refusal_words(text),
                  *(pod_facts(JOB, thing).why for thing in (obj, down, gone))):  # fmt: skip
        assert words.isprintable()
        assert len(words) <= TEXT_LIMIT


EMPTY: st.SearchStrategy[object] = st.none() | st.just([]) | st.just({})
KEYS = st.sampled_from(["phase", "conditions", "containerStatuses", "initContainerStatuses",
                        "labels", "annotations", "name", "nodeName", "completions",
                        "replicatedJobs", "pytorchReplicaSpecs", "elasticPolicy"])  # fmt: skip


@given(st.dictionaries(st.sampled_from(["status", "spec", "metadata"]),
                       st.dictionaries(KEYS, EMPTY)))  # fmt: skip
def test_an_object_that_lacks_parts_has_a_state(obj: Json) -> None:
    for target in TARGETS.values():
        state, _ = judge(Seen(target, "demo", obj, [obj]))
        assert state in State


def test_the_page_has_each_reason(root: Path) -> None:
    page = (root / "docs" / "kubernetes-states.md").read_text()
    rows = {**{k: v or "its containers are being made" for k, v in WAITING.items()},
            **ENDED, **TERMINATED, **EVENTS, **GIVEN_UP}  # fmt: skip
    for code, words in rows.items():
        assert any(f"| `{code}` | {one} |" in page for one in meanings(code)), (code, words)
    for number, words in CODES.items():
        assert f"| {number} | {words} |" in page


def meanings(code: str) -> list[str]:
    """What the tables say of a code; two may have it."""
    waits = {code: WAITING[code] or "its containers are being made"} if code in WAITING else {}
    tables: list[dict[str, str]] = [waits, ENDED, TERMINATED, EVENTS, GIVEN_UP]
    return [table[code] for table in tables if code in table]


def test_running_pods_have_nothing_to_say() -> None:
    assert pod_facts(JOB, running("job", 0)).why == ""
