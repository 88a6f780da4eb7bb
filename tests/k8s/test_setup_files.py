"""What a platform team applies once per cluster, from k8s/, passes the checks of all manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from k8s.objects import manifests
from k8s.rules import every_fault
from k8s.schemas import CRDS, needs_crds, releases

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = sorted((ROOT / "k8s").rglob("*.y*ml"))
NO_API_SERVER_READS_IT = {
    "kind.x-k8s.io/v1alpha4": "read by kind",
    "argoproj.io/v1alpha1": "Argo CD's; its CRDs are not here",
    "kustomize.toolkit.fluxcd.io/v1": "Flux's; its CRDs are not here",
    "source.toolkit.fluxcd.io/v1": "Flux's; its CRDs are not here",
    "kustomize.config.k8s.io/v1beta1": "read by kustomize",
    None: "no object: cluster profiles, policies, workflows, values",
}
"""By apiVersion, why there is no schema to check an object of k8s/ against."""
BUILTIN_RESOURCES = {
    "": {
        "configmaps",
        "services",
        "pods",
        "pods/log",
        "pods/exec",
        "events",
        "namespaces",
        "secrets",
    },
    "batch": {"jobs"},
    "apps": {"deployments"},
}


def documents(file: Path) -> list[dict[str, Any]]:
    return [d for d in manifests(file.read_text("utf-8")) if isinstance(d, dict)]


OBJECTS = {
    f"{file.relative_to(ROOT)}-{n}": document
    for file in FILES
    for n, document in enumerate(documents(file))
    if document.get("apiVersion") not in NO_API_SERVER_READS_IT
}
ROLES = [name for name, manifest in OBJECTS.items() if manifest["kind"] in {"Role", "ClusterRole"}]


def test_there_are_files_of_each_sort() -> None:
    kinds = {manifest["kind"] for manifest in OBJECTS.values()}
    assert {"Role", "NetworkPolicy", "Namespace", "ClusterQueue", "LocalQueue"} <= kinds


@needs_crds
@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_of_the_setup_is_valid(name: str) -> None:
    for release in releases():
        assert every_fault(OBJECTS[name], release) == []


@needs_crds
@pytest.mark.parametrize("name", ROLES)
def test_a_role_names_resources_that_exist_and_no_wildcard(name: str) -> None:
    custom = {tuple(file.stem.split("_", 1)) for file in CRDS.glob("*/*_*.yaml")}
    for rule in OBJECTS[name]["rules"]:
        assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
        for resource in rule["resources"]:
            assert any(
                (group, resource) in custom or resource in BUILTIN_RESOURCES.get(group, set())
                for group in rule["apiGroups"]
            ), f"{resource} of {rule['apiGroups']}"
