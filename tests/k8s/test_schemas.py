"""The checks of manifests bite: a small one of each kind passes, and each damage is refused."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from k8s.enums import WORDS, enum_faults
from k8s.objects import manifests, pod_templates, quantity, walk
from k8s.podsecurity import BASELINE, RESTRICTED, broken
from k8s.rules import every_fault
from k8s.schemas import custom_schema, needs_crds, releases

[MINIMAL] = manifests((Path(__file__).parent / "minimal.yaml").read_text("utf-8"))
NEWEST = releases()[-1]
Damage = Callable[[dict[str, Any]], object]
FREE = ("labels", "annotations", "matchLabels", "data", "selector", "limits", "requests")
"""Maps whose keys are the user's."""


def test_three_releases_are_checked() -> None:
    assert len(releases()) == 3
    assert all(re.fullmatch(r"1\.\d+\.\d+", release) for release in releases())


@needs_crds
@pytest.mark.parametrize("release", releases())
@pytest.mark.parametrize("kind", MINIMAL)
def test_a_small_manifest_passes(kind: str, release: str) -> None:
    assert every_fault(MINIMAL[kind], release) == []


def schema_keys(manifest: dict[str, Any]) -> list[str]:
    """The path of each key that a schema names."""
    free = re.compile(rf"(^|\.)({'|'.join(FREE)})\.")
    return [path for path, _ in walk(manifest) if not free.search(path) and path[-1] != "]"]


def at(manifest: Any, path: str) -> tuple[Any, Any]:
    """The map or list that holds what `path` names, and the last key."""
    steps = [int(n) if n else key for key, n in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path)]
    for step in steps[:-1]:
        manifest = manifest[step]
    return manifest, steps[-1]


@needs_crds
@pytest.mark.parametrize("kind", MINIMAL)
def test_a_key_that_no_schema_names_is_refused(kind: str) -> None:
    for path in schema_keys(MINIMAL[kind]):
        manifest = copy.deepcopy(MINIMAL[kind])
        parent, key = at(manifest, path)
        parent[f"{key}x"] = parent.pop(key)
        assert every_fault(manifest, NEWEST), path


@needs_crds
@pytest.mark.parametrize("kind", MINIMAL)
@pytest.mark.parametrize("wrong", [None, [[]], {"x": {}}], ids=str)
def test_a_value_of_another_type_is_refused(kind: str, wrong: object) -> None:
    for path in schema_keys(MINIMAL[kind]):
        manifest = copy.deepcopy(MINIMAL[kind])
        parent, key = at(manifest, path)
        parent[key] = wrong
        assert every_fault(manifest, NEWEST), path


@pytest.mark.parametrize("kind", MINIMAL)
def test_another_word_for_each_word_that_the_api_knows_is_refused(kind: str) -> None:
    for path, value in walk(MINIMAL[kind]):
        plain = re.sub(r"\[\d+\]", "", path)
        if not any(f".{plain}".endswith(f".{end}") for end in WORDS) or not isinstance(value, str):
            continue
        manifest = copy.deepcopy(MINIMAL[kind])
        parent, key = at(manifest, path)
        parent[key] = value.lower() + "s"
        assert [fault for fault in enum_faults(manifest) if fault.startswith(path)]


def replace(path: str, value: object) -> Damage:
    def damage(manifest: dict[str, Any]) -> None:
        parent, key = at(manifest, path)
        parent[key] = value

    return damage


def rename(path: str, name: str) -> Damage:
    def damage(manifest: dict[str, Any]) -> None:
        parent, key = at(manifest, path)
        parent[name] = parent.pop(key)

    return damage


POD = "spec.template.spec"
NODE = f"{POD}.containers[0]"
EXPRESSION = (
    f"{POD}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    ".nodeSelectorTerms[0].matchExpressions[0]"
)
RULE = "spec.podFailurePolicy.rules[0]"
JOBSET_POD = f"spec.replicatedJobs[0].template.{POD}"
TOPOLOGIES = {f"kueue.x-k8s.io/podset-{how}-topology": "rack" for how in ("required", "preferred")}
DAMAGES: list[tuple[str, str, Damage, str]] = [
    ("label with a blank", "Job", replace("metadata.labels", {"a": "b c"}), "metadata.labels.a"),
    ("label of 64", "Job", replace("metadata.labels", {"a": "b" * 64}), "metadata.labels.a"),
    ("label's name", "Job", replace("metadata.labels", {"a/b/c": "1"}), "metadata.labels.a/b/c"),
    ("long name", "Job", replace("metadata.name", "a" * 53), "leaves no room"),
    ("long pod", "JobSet", replace("metadata.name", "a" * 49), "has 64 characters"),
    ("capital", "JobSet", replace("metadata.name", "Tiny"), "is no name"),
    ("digit first", "Service", replace("metadata.name", "0tiny"), "is no name"),
    ("key of data", "ConfigMap", replace("data", {"a/b": ""}), "no key of a ConfigMap"),
    ("large data", "ConfigMap", replace("data", {"a": "x" * 2**20}), "more than 1 MiB"),
    ("one variable twice", "Job", replace(f"{NODE}.env[1].name", "A"), "there twice"),
    ("variable's name", "Job", replace(f"{NODE}.env[0].name", "A=B"), "is no name"),
    ("a NUL", "Job", replace(f"{NODE}.env[0].value", "a\0"), "NUL"),
    ("no image", "Job", replace(f"{NODE}.image", " "), "image: none"),
    ("container's name", "Job", replace(f"{NODE}.name", "Node"), "'Node'"),
    ("volume that is not there", "Job", replace(f"{NODE}.volumeMounts[0].name", "x"), "no volume"),
    ("relative mount", "Job", replace(f"{NODE}.volumeMounts[0].mountPath", "x"), "absolute"),
    ("two mounts", "Job", replace(f"{NODE}.volumeMounts[0].mountPath", "/orchestrate"), "twice"),
    ("no source", "Job", replace(f"{POD}.volumes[0]", {"name": "dshm"}), "one source"),
    ("milli-memory", "Job", replace(f"{NODE}.resources.requests.memory", "8x"), "no quantity"),
    ("request > limit", "Job", replace(f"{NODE}.resources.requests.memory", "9Gi"), "allowed"),
    ("half a GPU", "Job", replace(f"{NODE}.resources.limits", {"x/gpu": "0.5"}), "is whole"),
    ("no request", "Job", replace(f"{NODE}.resources.limits", {"x/gpu": "1"}), "request = limit"),
    ("port", "Job", replace(f"{NODE}.ports[0].containerPort", 65536), "65536"),
    ("port's name", "Job", replace(f"{NODE}.ports[0].name", "a-name-too-long-"), "port's name"),
    ("two admit", "JobSet", replace(f"{JOBSET_POD}.schedulerName", "volcano"), "Kueue admits"),
    ("topologies", "Job", replace("metadata.annotations", TOPOLOGIES), "podset-required"),
    ("user", "Job", replace(f"{POD}.securityContext.runAsUser", 2**31), "not in 0 to"),
    ("selector", "Job", replace(f"{EXPRESSION}.operator", "Exists"), "values with In"),
    ("no values", "Job", replace(f"{EXPRESSION}.values", []), "values with In"),
    ("toleration", "Job", replace(f"{POD}.tolerations[0].value", "x"), "takes no value"),
    ("always", "Job", replace(f"{POD}.restartPolicy", "Always"), "Never or OnFailure"),
    ("on failure", "Job", replace(f"{POD}.restartPolicy", "OnFailure"), "restartPolicy Never"),
    ("replacement", "Job", replace("spec.podReplacementPolicy", "TerminatingOrFailed"), "Failed"),
    ("code 0", "Job", replace(f"{RULE}.onExitCodes.values", [0, 1]), "no failure"),
    ("codes unsorted", "Job", replace(f"{RULE}.onExitCodes.values", [78, 1]), "in order"),
    ("container", "Job", replace(f"{RULE}.onExitCodes.containerName", "x"), "no container"),
    (
        "rule of nothing",
        "Job",
        lambda m: m["spec"]["podFailurePolicy"]["rules"][0].pop("onExitCodes"),
        "exactly one",
    ),
    ("nprocPerNode", "PyTorchJob", replace("spec.nprocPerNode", "auto"), "a number"),
    ("number", "PyTorchJob", replace("spec.nprocPerNode", 1), "string"),
    ("elastic", "PyTorchJob", replace("spec.elasticPolicy", {"minReplicas": 1}), "exactly one"),
    ("roles", "PyTorchJob", rename("spec.pytorchReplicaSpecs.Worker", "Chief"), "alone"),
    ("large number", "JobSet", replace("spec.failurePolicy.maxRestarts", 2**31), "int32"),
    ("null", "TrainJob", replace("spec.suspend", None), "null"),
]


@needs_crds
@pytest.mark.parametrize(
    ("kind", "damage", "words"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES]
)
def test_what_a_server_would_refuse_is_refused(kind: str, damage: Damage, words: str) -> None:
    manifest = copy.deepcopy(MINIMAL[kind])
    damage(manifest)
    assert words in "\n".join(every_fault(manifest, NEWEST))


UNSAFE: dict[str, Damage] = {
    "HostProcess": replace(f"{NODE}.securityContext.windowsOptions", {"hostProcess": True}),
    "Host Namespaces": replace(f"{POD}.hostNetwork", True),
    "Privileged Containers": replace(f"{NODE}.securityContext.privileged", True),
    "Capabilities": replace(f"{NODE}.securityContext.capabilities.add", ["IPC_LOCK"]),
    "HostPath Volumes": replace(f"{POD}.volumes[0]", {"name": "dshm", "hostPath": {"path": "/"}}),
    "Host Ports": replace(f"{NODE}.ports[0].hostPort", 23456),
    "SELinux": replace(f"{POD}.securityContext.seLinuxOptions", {"level": "s0"}),
    "/proc Mount Type": replace(f"{NODE}.securityContext.procMount", "Unmasked"),
    "Seccomp": replace(f"{POD}.securityContext.seccompProfile.type", "Unconfined"),
    "Sysctls": replace(f"{POD}.securityContext.sysctls", [{"name": "kernel.msgmax", "value": "1"}]),
    "Volume Types": replace(f"{POD}.volumes[0]", {"name": "dshm", "nfs": {"path": "/"}}),
    "Privilege Escalation": replace(f"{NODE}.securityContext.allowPrivilegeEscalation", True),
    "Running as Non-root": replace(f"{NODE}.securityContext.runAsNonRoot", False),
    "Running as Non-root user": replace(f"{POD}.securityContext.runAsUser", 0),
    "Seccomp (restricted)": replace(
        f"{POD}.securityContext.seccompProfile", {"type": "Localhost2"}
    ),
    "Capabilities (restricted)": replace(f"{NODE}.securityContext.capabilities.drop", ["KILL"]),
}


def test_each_control_of_pod_security_has_its_damage() -> None:
    assert set(UNSAFE) == {*BASELINE, *RESTRICTED}
    [template] = pod_templates(MINIMAL["Job"])
    assert broken(template.spec, "restricted") == []


@pytest.mark.parametrize("control", UNSAFE)
def test_a_pod_that_breaks_a_control_is_refused_by_its_name(control: str) -> None:
    manifest = copy.deepcopy(MINIMAL["Job"])
    UNSAFE[control](manifest)
    [template] = pod_templates(manifest)
    assert control in broken(template.spec, "restricted")
    assert (control in broken(template.spec, "baseline")) == (control in BASELINE)


@given(st.integers(0, 10**9), st.sampled_from(["", "k", "M", "Gi", "Ti"]))
def test_a_quantity_is_the_number_it_stands_for(number: int, suffix: str) -> None:
    factor = {"": 1, "k": 10**3, "M": 10**6, "Gi": 2**30, "Ti": 2**40}[suffix]
    assert quantity(f"{number}{suffix}") == number * factor
    assert quantity(f"{number}{suffix}x") is None
    assert quantity(f"{number}.5{suffix}") == factor * (number + Decimal("0.5"))


def test_a_key_that_is_there_twice_is_refused() -> None:
    with pytest.raises(yaml.YAMLError, match="twice"):
        manifests("a: 1\nb: {c: 1, c: 2}\n")


KINDS_WITH_RULES = {
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
    "TrainingRuntime": "trainer.kubeflow.org/v1alpha1",
    "PyTorchJob": "kubeflow.org/v1",
}
RULES_OF_CRDS = {
    "self.metadata.name.matches('^[a-z](": "rules._names",
    "size(self.metadata.name) <= 63": "rules._names",
    "[has(self.torch), has(self.mpi), ": "one of mlPolicy's parts: this project writes none",
    "!self.exists(c, c == 'node')": "mlPolicy.torch",
    "self >= 1": "mlPolicy.flux",
    "!(has(self.startupPolicy) && ": "this project writes no startupPolicy",
    "self == '' || self.matches('^[A-Za-z]": "it writes no initializer",
    "self in ['trainer.kubeflow.org/": "it writes no managedBy",
    "self.templates.all(t, !has(": "it writes no volumeClaimPolicies",
    "has(self.lastUpdatedTime)": "the status",
}
"""How each rule of a CRD that holds at an object's creation begins, and what looks after it."""


@needs_crds
@pytest.mark.parametrize("kind", KINDS_WITH_RULES)
def test_no_rule_of_a_crd_that_holds_at_creation_is_overlooked(kind: str) -> None:
    schema = custom_schema(KINDS_WITH_RULES[kind], kind)
    rules = {value for path, value in walk(schema) if path.endswith(".rule")}
    at_creation = {rule for rule in rules if "oldSelf" not in rule}
    assert [rule for rule in at_creation if not rule.startswith(tuple(RULES_OF_CRDS))] == []
