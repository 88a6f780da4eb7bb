"""kustomize builds every overlay of every example, and an API server takes what it builds."""

from __future__ import annotations

from pathlib import Path

import pytest

from k8s.kustomized import built, rendered_objects
from k8s.rules import every_fault
from k8s.schemas import needs_crds, releases
from k8s.sites import EXAMPLES, NEUTRAL, SITES, TARGETS, render_job
from orchestrator.kustomize import kustomize
from orchestrator.render import Rendered

NEWEST = releases()[-1]
NOT_HERE = {"sweep"}
"""Examples that are for other targets."""


def write_tree(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")


def check_builds(folder: Path, clusters: dict[str, Rendered]) -> None:
    """Each overlay gives what is rendered for its cluster, and that is valid."""
    write_tree(folder, kustomize(list(clusters.items())))
    for name, rendered in clusters.items():
        objects = built(folder / "overlays" / name)
        assert [fault for m in objects.values() for fault in every_fault(m, NEWEST)] == []
        texts = (text for file, text in rendered.files.items() if file.endswith(".yaml"))
        assert objects == rendered_objects(*texts)


@needs_crds
@pytest.mark.parametrize(
    "example", [e for e in EXAMPLES if e.stem not in NOT_HERE], ids=lambda path: path.stem
)
def test_each_overlay_of_an_example_builds_and_is_valid(example: Path, tmp_path: Path) -> None:
    text = example.read_text("utf-8")
    check_builds(tmp_path, {target: render_job(text, target, NEUTRAL) for target in TARGETS})


@needs_crds
@pytest.mark.parametrize("target", TARGETS)
def test_overlays_of_very_different_sites_are_valid(target: str, tmp_path: Path) -> None:
    text = (EXAMPLES[0].parent / "demo.yaml").read_text("utf-8")
    check_builds(tmp_path, {name: render_job(text, target, site) for name, site in SITES.items()})
