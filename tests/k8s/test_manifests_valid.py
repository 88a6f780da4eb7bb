"""Every manifest that is rendered is one that an API server takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from k8s.objects import manifests
from k8s.rules import every_fault
from k8s.schemas import needs_crds, releases
from k8s.sites import EXAMPLES, JOBS, NEUTRAL, SITES, TARGETS, render_job, site_objects
from orchestrator.errors import UserError

REFUSED = {"sweep": "sweep"}
"""Examples that need another target, and the word of the refusal that says why."""
SINCE_TRAINER_2_2 = {"activeDeadlineSeconds", "runtimePatches"}
"""Keys of a TrainJob's spec that Kubeflow Trainer 2.1 does not know."""


def check(text: str, target: str, site: str) -> None:
    for name, manifest in site_objects(text, target, site).items():
        for release in releases():
            assert every_fault(manifest, release) == [], f"{name}, Kubernetes {release}"


@needs_crds
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_gives_valid_objects_or_is_refused(example: Path, target: str) -> None:
    text = example.read_text("utf-8")
    if example.stem in REFUSED:
        with pytest.raises(UserError, match=REFUSED[example.stem]):
            render_job(text, target, NEUTRAL)
        return
    check(text, target, "neutral")


@needs_crds
@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("job", JOBS)
def test_each_site_gives_valid_objects(job: str, target: str, site: str) -> None:
    check(JOBS[job], target, site)


@needs_crds
@pytest.mark.parametrize("version", ["2.1", "2.2", "2.3"])
def test_a_trainjob_has_no_key_that_its_release_does_not_know(version: str) -> None:
    site = {**NEUTRAL, "trainjob_version": version}
    [job] = manifests(render_job(JOBS["wide"], "trainjob", site).files["trainjob.yaml"])
    assert every_fault(job, releases()[-1]) == []
    assert bool(SINCE_TRAINER_2_2 & set(job["spec"])) == (version != "2.1")
    # `trainer` would have the operator set PET_* beside the launcher's own.
    assert set(job["spec"]) <= {"runtimeRef", "suspend", *SINCE_TRAINER_2_2}
