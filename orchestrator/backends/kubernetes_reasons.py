"""Kubernetes' reasons for which pods wait or have ended, in plain words.

The codes are those of Kubernetes 1.36: kubelet (pkg/kubelet/images, kuberuntime, eviction),
kube-scheduler (plugin/names and their messages), the Job controller, and core/v1's conditions of
pods. What is not here is shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from orchestrator.errors import printable

TEXT_LIMIT = 400

# A container that waits: state.waiting.reason. None: nothing but patience is asked for.
WAITING: dict[str, str | None] = {
    "ContainerCreating": None,
    "PodInitializing": None,
    "CrashLoopBackOff": "it ended again and again and is started again in a while",
    "CreateContainerConfigError": "a Secret or ConfigMap that it refers to, or a key of it, is "
    "missing, or it would run as root",
    "CreateContainerError": "the node cannot make the container",
    "ErrImageNeverPull": "the node does not have the image, and kubernetes.image_pull_policy is "
    "Never",
    "ErrImagePull": "the node cannot pull the image: does it exist, and may the cluster read it "
    "(kubernetes.image_pull_secrets)?",
    "ErrReasonResourceNameConflict": "the node cannot make the container",
    "ImageInspectError": "the node cannot read the image",
    "ImagePullBackOff": "the node cannot pull the image: does it exist, and may the cluster read "
    "it (kubernetes.image_pull_secrets)?",
    "InvalidImageName": "kubernetes.image is no name of an image",
    "RegistryUnavailable": "the image's registry does not answer",
    "RunContainerError": "the node cannot start the container",
    "SignatureValidationFailed": "the image's signature is not accepted",
}

# status.reason of a pod, or of its condition DisruptionTarget: what has ended it from outside.
ENDED = {
    "DeadlineExceeded": "its time limit passed (activeDeadlineSeconds)",
    "DeletionByPodGC": "its node is gone",
    "DeletionByTaintManager": "its node was tainted: it did not answer, or was taken away",
    "Evicted": "its node ran out of memory or disk and evicted it",
    "EvictionByEvictionAPI": "it was evicted: its node is being drained",
    "NodeAffinity": "its node's labels have changed",
    "NodeLost": "its node does not answer",
    "NodeShutdown": "its node was shut down",
    "OutOfcpu": "its node had no CPU left after all",
    "OutOfmemory": "its node had no memory left after all",
    "Preempting": "it made room for a system pod",
    "PreemptionByScheduler": "it made room for pods of a higher priority",
    "Shutdown": "its node was shut down",
    "Terminated": "its node was shut down",
    "TerminationByKubelet": "its node ended it: short of resources, or shut down",
    "UnexpectedAdmissionError": "its node could not give it a device after all",
}

# state.terminated.reason of a container, where that says more than its exit code.
TERMINATED = {
    "ContainerCannotRun": "the container could not be started",
    "ContainerStatusUnknown": "its node was lost, and nobody saw its end",
    "OOMKilled": "it took more memory than it may (resources.memory)",
    "StartError": "the container could not be started",
}

# Exit codes of node.py in a pod (docs/contract.md), and the two that a kubelet causes.
CODES = {
    0: "done",
    1: "failed, and nothing is left of its budgets",
    78: "a configuration error, which would happen again",
    129: "failed, to be started again",
    137: "killed (SIGKILL)",
    143: "ended (SIGTERM) before the launcher had begun",
    203: "stopped after a checkpoint, to be started again",
    207: "no progress, to be started again",
}

# The reason of a condition Failed, by which a controller gives up.
GIVEN_UP = {
    "BackoffLimitExceeded": "its pods have failed as often as they may",
    "DeadlineExceeded": "its deadline passed (attempts.deadline)",
    "FailJobSetFailurePolicyAction": "a failure that is not repeated",
    "FailedIndexes": "some nodes have failed for good",
    "FailedJobs": "its pods have failed",
    "JobsFailed": "its pods have failed",
    "MaxFailedIndexesExceeded": "too many nodes have failed for good",
    "PodFailurePolicy": "a failure that is not repeated",
    "PyTorchJobFailed": "its pods have failed",
    "ReachedMaxRestarts": "it has been started again as often as it may",
}

# A warning's reason -> what it means; the message says the rest.
EVENTS = {
    "BackoffLimitExceeded": "its pods have failed as often as they may",
    "FailedAttachVolume": "a volume cannot be attached to the node",
    "FailedCreate": "its pods are refused",
    "FailedCreatePod": "its pods are refused",
    "FailedCreatePodSandBox": "the node cannot set up the pod's network",
    "FailedCreateService": "its Service is refused",
    "FailedDelete": "its pods cannot be deleted",
    "FailedMount": "a volume cannot be mounted",
    "FailedToRetrieveImagePullSecret": "kubernetes.image_pull_secrets names a Secret that is not "
    "there",
    "InvalidTrainJob": "the operator refuses it",
    "NetworkNotReady": "the node's network is not ready",
    "TrainJobResourcesCreationFailed": "the operator cannot make its objects",
}

# What an API server answers to a controller that makes a pod; the first that fits.
REFUSALS = {
    r"exceeded quota: (?P<what>[^,]+)": "the namespace's quota {what} is used up: ask for less, "
    "wait for others to end, or have it raised",
    r"must specify (?P<what>[\w.,-]+)": "the namespace's quota wants {what} to be given",
    r"violates PodSecurity \"(?P<what>[^\":]+)": "the namespace's Pod Security level {what} does "
    "not let the pods in: kubernetes.pod_security; on a PyTorchJob with a Master the operator "
    "gives its workers an init container that restricted never lets in: use another target",
    r"admission webhook \"(?P<what>[^\"]+)\" denied": "the webhook {what} refuses the pods",
    r"serviceaccount \"(?P<what>[^\"]+)\" not found": "there is no service account {what} "
    "(kubernetes.service_account)",
    r"no PriorityClass with name (?P<what>\S+) was found": "there is no priority class {what} "
    "(kubernetes.priority_class)",
    r"RuntimeClass \"(?P<what>[^\"]+)\" not found": "there is no runtime class {what} "
    "(kubernetes.runtime_class)",
    r"is forbidden: (?P<what>.+)": "it is forbidden: {what}",
}

# What kube-scheduler says of nodes; its plug-ins' texts.
SCHEDULER = {
    r"Insufficient (?P<what>\S+)": "too little {what} is free",
    r"Too many pods": "no room for another pod",
    r"node\(s\) had untolerated taint\(s\)": "taints that the pods do not bear "
    "(kubernetes.tolerations)",
    r"node\(s\) had untolerated taint \{(?P<what>[^}]*)\}.*": "a taint that the pods "
    "do not bear: {what} (kubernetes.tolerations)",
    r"node\(s\) didn't match Pod's node affinity/selector": "labels are not those that are asked "
    "for (kubernetes.node_selector, node_affinity, resources.gpu_type)",
    r"node\(s\) didn't match pod affinity rules": "not in the domain of the run's other pods "
    "(kubernetes.pack)",
    r"node\(s\) didn't match pod anti-affinity rules": "pods that it must not lie beside",
    r"node\(s\) didn't match pod topology spread constraints.*": "it would lie too unevenly "
    "(kubernetes.topology_spread)",
    r"node\(s\) didn't satisfy plugin.*": "not as a scheduler plug-in wants it",
    r"node\(s\) had volume node affinity conflict": "the volume cannot be reached from there",
    r"node\(s\) didn't find available persistent volumes to bind": "no volume for the claim",
    r"node\(s\) exceed max volume count": "no room for another volume",
    r"node\(s\) didn't have free ports.*": "the port is taken (kubernetes.host_network)",
    r"node\(s\) were unschedulable": "closed for new pods (cordoned)",
    r"node\(s\) were not ready": "not ready",
    r"Preemption is not helpful for scheduling": "nobody of a lower priority can make room",
    r"No preemption victims found for incoming pod.*": "nobody of a lower priority can make room",
}
WHOLE = {
    r"pod has unbound immediate PersistentVolumeClaims.*": "its volume claim is bound to no "
    "volume: `kubectl get pvc`",
    r"persistentvolumeclaim \"(?P<what>[^\"]+)\" not found.*": "there is no volume claim {what}",
    r"persistentvolumeclaim \"(?P<what>[^\"]+)\" is being deleted.*": "the volume claim {what} is "
    "being deleted",
    r"no nodes available to schedule pods": "the cluster has no nodes",
    r".*gang scheduling.*": "it waits until all its pods can be placed at once",
}


def scheduler_words(message: str) -> str:
    """A message of kube-scheduler (event FailedScheduling, condition PodScheduled) in plain words.

    "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable." becomes
    "of 3 nodes: 1: too little cpu is free; 2: closed for new pods (cordoned)".
    """
    text = " ".join(message.split()).partition(" preemption: ")[0]
    text = text.removesuffix(" no new claims to deallocate,")  # kube-scheduler 1.33 on
    match = re.fullmatch(r"\d+/(\d+) nodes are available: (.*)", text)
    said = (match[2] if match else text).rstrip(". ")
    whole = worded(said, WHOLE)
    if whole:
        return whole
    if not match:
        return short(said)
    parts = [_counted(part) for part in re.split(r", (?=\d+ )", said)]
    return short(f"of {match[1]} nodes: {'; '.join(parts)}")


def _counted(part: str) -> str:
    count, _, what = part.partition(" ")
    if not count.isdecimal():
        return worded(part, SCHEDULER) or part
    return f"{count}: {worded(what.rstrip('.'), SCHEDULER) or what}"


def refusal_words(message: str) -> str:
    """Why an API server did not take a controller's pods; the message itself if it is not known."""
    for pattern, words in REFUSALS.items():
        if match := re.search(pattern, message):
            return short(words.format(**match.groupdict()))
    return short(message)


def exit_words(code: int) -> str:
    """What an exit code of a pod means."""
    if code in CODES:
        return f"exit code {code} ({CODES[code]})"
    signal = f" (signal {code - 128})" if 128 < code < 193 else ""
    return f"exit code {code}{signal}"


def worded(text: str, table: Mapping[str, str]) -> str:
    """The words of the first pattern that fits the whole text; "" if none does."""
    for pattern, words in table.items():
        if match := re.fullmatch(pattern, text):
            return words.format(**match.groupdict())
    return ""


def short(text: str) -> str:
    """One line that a table and a terminal bear."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= TEXT_LIMIT else f"{line[: TEXT_LIMIT - 3]}..."
