"""Words that the API knows, where neither the published schemas nor the CRDs list them.

Each from the API reference of Kubernetes 1.37 or of the operator; a server refuses another word at
best, and takes it in silence at worst (PyTorchJob's restartPolicy).
"""

from __future__ import annotations

import re
from typing import Any

from k8s.objects import walk

SELECTOR = ("In", "NotIn", "Exists", "DoesNotExist")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
REPLICA_RESTARTS = ("Always", "OnFailure", "Never", "ExitCode")
POD_SECURITY = ("privileged", "baseline", "restricted")
WORDS: dict[str, tuple[str, ...]] = {
    # core/v1 PodSpec and Container
    "spec.restartPolicy": ("Always", "OnFailure", "Never"),
    "spec.dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    "spec.preemptionPolicy": ("PreemptLowerPriority", "Never"),
    "containers.imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "containers.terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
    "ports.protocol": ("TCP", "UDP", "SCTP"),
    "securityContext.fsGroupChangePolicy": ("OnRootMismatch", "Always"),
    "seccompProfile.type": ("RuntimeDefault", "Localhost", "Unconfined"),
    "appArmorProfile.type": ("RuntimeDefault", "Localhost", "Unconfined"),
    "tolerations.operator": ("Equal", "Exists"),
    "tolerations.effect": EFFECTS,
    "taints.effect": EFFECTS,
    "nodeSelectorTerms.matchExpressions.operator": (*SELECTOR, "Gt", "Lt"),
    "preference.matchExpressions.operator": (*SELECTOR, "Gt", "Lt"),
    "nodeSelectorTerms.matchFields.operator": ("In", "NotIn"),
    "labelSelector.matchExpressions.operator": SELECTOR,
    "podSelector.matchExpressions.operator": SELECTOR,
    "topologySpreadConstraints.whenUnsatisfiable": ("DoNotSchedule", "ScheduleAnyway"),
    "topologySpreadConstraints.nodeAffinityPolicy": ("Honor", "Ignore"),
    "topologySpreadConstraints.nodeTaintsPolicy": ("Honor", "Ignore"),
    "emptyDir.medium": ("", "Memory", "HugePages"),
    "hostPath.type": ("", "Directory", "DirectoryOrCreate", "File", "FileOrCreate"),
    "accessModes": ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"),
    # core/v1 ServiceSpec
    "spec.type": ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"),
    "spec.sessionAffinity": ("None", "ClientIP"),
    "spec.ipFamilyPolicy": ("SingleStack", "PreferDualStack", "RequireDualStack"),
    "spec.ipFamilies": ("IPv4", "IPv6"),
    # batch/v1 JobSpec
    "spec.completionMode": ("NonIndexed", "Indexed"),
    "spec.podReplacementPolicy": ("TerminatingOrFailed", "Failed"),
    "podFailurePolicy.rules.action": ("FailJob", "FailIndex", "Ignore", "Count"),
    "onExitCodes.operator": ("In", "NotIn"),
    "onPodConditions.status": ("True", "False", "Unknown"),
    "onPodConditions.type": ("DisruptionTarget", "PodScheduled", "Ready", "ConfigIssue"),
    # kubeflow.org/v1 PyTorchJob; training-operator 1.9, pkg/apis/kubeflow.org/v1/common_types.go
    "Master.restartPolicy": REPLICA_RESTARTS,
    "Worker.restartPolicy": REPLICA_RESTARTS,
    "runPolicy.cleanPodPolicy": ("None", "Running", "All"),
    "runPolicy.managedBy": (
        "kubeflow.org/training-operator",
        "kueue.x-k8s.io/multikueue",
    ),
    "elasticPolicy.rdzvBackend": ("c10d", "etcd", "etcd-v2"),
    # trainer.kubeflow.org/v1alpha1 and jobset.x-k8s.io/v1alpha2
    "runtimeRef.kind": ("TrainingRuntime", "ClusterTrainingRuntime"),
    "runtimeRef.apiGroup": ("trainer.kubeflow.org",),
    "failurePolicy.rules.onJobFailureReasons": (
        "BackoffLimitExceeded",
        "DeadlineExceeded",
        "FailedIndexes",
        "MaxFailedIndexesExceeded",
        "PodFailurePolicy",
    ),
    # rbac.authorization.k8s.io/v1, networking.k8s.io/v1, Pod Security
    "roleRef.kind": ("Role", "ClusterRole"),
    "roleRef.apiGroup": ("rbac.authorization.k8s.io",),
    "subjects.kind": ("User", "Group", "ServiceAccount"),
    "rules.verbs": (
        *("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"),
        *("use", "bind", "escalate", "impersonate"),
    ),
    "spec.policyTypes": ("Ingress", "Egress"),
    **{
        f"labels.pod-security.kubernetes.io/{mode}": POD_SECURITY
        for mode in ("enforce", "audit", "warn")
    },
}
"""Allowed words by the end of a path without its numbers."""


def enum_faults(manifest: dict[str, Any]) -> list[str]:
    """Each word of `manifest` that the API does not know in its place, as "path: ..."."""
    found = []
    for path, value in walk(manifest):
        allowed = _allowed(path)
        if allowed and isinstance(value, str) and value not in allowed:
            found.append(f"{path}: {value!r} is not one of {', '.join(allowed)}")
    return found


def _allowed(path: str) -> tuple[str, ...] | None:
    plain = re.sub(r"\[\d+\]", "", path)
    return next((words for end, words in WORDS.items() if f".{plain}".endswith(f".{end}")), None)
