"""What the controllers of each kind do when a pod has ended, by the manifest's own rules.

From the controllers as released: Job of Kubernetes 1.36, JobSet 0.12.0, training-operator 1.9.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

Object = dict[str, Any]


class Do(Enum):
    """What a controller does about one pod's end."""

    NOTHING = "nothing"
    POD_ANEW = "this pod anew, at once"
    ALL_ANEW = "all pods anew, once they are gone"
    DONE = "the object is complete: the other pods are ended"
    FAILED = "the object has failed: the other pods are ended"


class Controller(Protocol):
    def ended(self, node: int, code: int, *, disrupted: bool = False) -> Do:
        """What happens when the pod of this node has ended with this code.

        Args:
            disrupted: an eviction or preemption ended it (condition DisruptionTarget).
        """


def controller_of(objects: Mapping[str, Object]) -> Controller:
    """The controller of the rendered objects, given by kind."""
    if "PyTorchJob" in objects:
        return PyTorchJobs(objects["PyTorchJob"]["spec"])
    if "JobSet" in objects:
        return JobSets(objects["JobSet"]["spec"])
    if "TrainJob" in objects:
        return JobSets(objects["TrainingRuntime"]["spec"]["template"]["spec"])
    return Jobs(objects["Job"]["spec"])


@dataclass
class Jobs:
    """An Indexed Job with restartPolicy Never."""

    spec: Object
    failures: int = 0
    reason: str = ""
    done: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        assert self.spec["template"]["spec"]["restartPolicy"] == "Never"
        assert "backoffLimitPerIndex" not in self.spec

    def ended(self, node: int, code: int, *, disrupted: bool = False) -> Do:
        if code == 0:
            self.done.add(node)
            return Do.DONE if len(self.done) == self.spec["completions"] else Do.NOTHING
        action = self._action(code, disrupted)
        if action == "FailJob":
            self.reason = "PodFailurePolicy"
            return Do.FAILED
        self.failures += action == "Count"
        if self.failures > self.spec.get("backoffLimit", 6):
            self.reason = "BackoffLimitExceeded"
            return Do.FAILED
        return Do.POD_ANEW

    def _action(self, code: int, disrupted: bool) -> str:
        for rule in self.spec.get("podFailurePolicy", {}).get("rules", ()):
            if matches(rule, code, disrupted):
                return str(rule["action"])
        return "Count"


def matches(rule: Object, code: int, disrupted: bool) -> bool:
    """Whether a rule of podFailurePolicy is about this end."""
    if codes := rule.get("onExitCodes"):
        return bool((code in codes["values"]) == (codes["operator"] == "In"))
    types = {condition["type"] for condition in rule["onPodConditions"]}
    return disrupted and "DisruptionTarget" in types


class JobSets:
    """A JobSet of one Job; a restart makes all of its pods anew."""

    def __init__(self, spec: Object) -> None:
        self.policy = spec.get("failurePolicy", {})
        (replicated,) = spec["replicatedJobs"]
        self.job_spec, self.restarts = replicated["template"]["spec"], 0
        self.job = Jobs(self.job_spec)

    def ended(self, node: int, code: int, *, disrupted: bool = False) -> Do:
        do = self.job.ended(node, code, disrupted=disrupted)
        if do is not Do.FAILED:
            return do
        action = self._action(self.job.reason)
        if action == "FailJobSet" or self.restarts >= self.policy.get("maxRestarts", 0):
            return Do.FAILED
        self.restarts, self.job = self.restarts + 1, Jobs(self.job_spec)
        return Do.ALL_ANEW

    def _action(self, reason: str) -> str:
        for rule in self.policy.get("rules", ()):
            if reason in rule.get("onJobFailureReasons", [reason]):
                return str(rule["action"])
        return "RestartJobSet"


class PyTorchJobs:
    """A PyTorchJob; with restartPolicy ExitCode backoffLimit does not bound it (seen on 1.9.4)."""

    def __init__(self, spec: Object) -> None:
        replicas = spec["pytorchReplicaSpecs"]
        assert {part["restartPolicy"] for part in replicas.values()} == {"ExitCode"}
        assert spec["runPolicy"]["cleanPodPolicy"] == "Running"
        self.has_master = "Master" in replicas
        self.left = set(range(sum(part.get("replicas", 1) for part in replicas.values())))

    def ended(self, node: int, code: int, *, disrupted: bool = False) -> Do:
        if code:
            return Do.POD_ANEW if code >= 128 else Do.FAILED
        self.left.discard(node)
        complete = (self.has_master and node == 0) or not self.left
        return Do.DONE if complete else Do.NOTHING
