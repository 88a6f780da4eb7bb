"""What the API has rules for is legal in the objects, or refused where it stands."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from k8s.hostile import (
    PIECES,
    containers,
    environment,
    few,
    hostile,
    objects_or_fault,
    quick,
)
from k8s.rules import every_fault
from k8s.schemas import needs_crds, releases
from k8s.sites import SITES, TARGETS

NEWEST = releases()[-1]


@quick
@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8) | hostile)
@example("Null")
@example("YES")
@example("_1")
@example("off")
def test_a_variables_name_is_legal_or_refused(name: str) -> None:
    objects = objects_or_fault("job", {}, env={name: "1"})
    if objects is not None:
        assert every_fault(objects["Job"], NEWEST) == []
        assert environment(containers(objects)[0])[name] == "1"


LONGEST = {
    "job": 52,
    "pytorchjob": 52,
    "jobset": 63 - len("-node-0-127-abcde"),
    "trainjob": 63 - len("-node-0-127-abcde"),
}
"""Characters of a name, by target, for 128 nodes."""
NAMES = st.from_regex(r"\A[a-z][a-z0-9-]{0,199}\Z") | st.text(min_size=1, max_size=200)


@needs_crds
@pytest.mark.parametrize("target", TARGETS)
@few
@given(NAMES)
@example("a" * 52)
@example("a" * 53)
@example("a-")
@example("null")
@example("on")
def test_a_name_fits_every_object_or_is_refused(target: str, name: str) -> None:
    objects = objects_or_fault(target, {}, name=name, resources={"nodes": 128})
    if objects is None:
        assert len(name) > LONGEST[target] or not re.fullmatch("[a-z][a-z0-9]*", name)
        return
    assert {manifest["metadata"]["name"] for manifest in objects.values()} == {name}
    assert [f for manifest in objects.values() for f in every_fault(manifest, NEWEST)] == []


@needs_crds
@quick
@given(st.text(max_size=80) | hostile, st.text(max_size=80) | hostile, hostile)
@example("a" * 63, "b" * 63, "")
@example("a" * 64, "b", "")
@example("a", "b" * 64, "")
@example("example.org/team", "true", "no")
def test_labels_are_legal_or_refused_and_annotations_arrive(
    key: str, value: str, note: str
) -> None:
    site = {"labels": {key: value}, "annotations": {"example.org/note": note}}
    objects = objects_or_fault("job", site)
    if objects is not None:
        job = objects["Job"]
        assert every_fault(job, NEWEST) == []
        for metadata in (job["metadata"], job["spec"]["template"]["metadata"]):
            assert metadata["labels"][key] == value
            assert metadata["annotations"]["example.org/note"] == note


LEGAL: list[dict[str, Any]] = [
    {"labels": {"a" * 63: "b" * 63, "example.org/team": "true"}},
    {"annotations": {"example.org/note": 'yes: "no"\n# $(HOME) {{ x }} \U0001f600\n'}},
    {"workdir": "/a b/$(HOME)/$$/'c'"},
    {"python": "/opt/$$/python", "launcher_from": "config-map"},
]


@pytest.mark.parametrize("site", LEGAL, ids=lambda site: next(iter(site)))
def test_what_is_legal_is_taken(site: dict[str, Any]) -> None:
    objects = objects_or_fault("job", site, env={"A": "".join(PIECES).replace("\0", "")})
    assert objects is not None
    assert every_fault(objects["Job"], NEWEST) == []


def text_places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to each text below a site's section."""
    if isinstance(value, str):
        return [place]
    if not isinstance(value, dict | list):
        return []
    steps = value.items() if isinstance(value, dict) else enumerate(value)
    return [found for step, child in steps for found in text_places(child, (*place, step))]


PLACES = [(site, place) for site, keys in SITES.items() for place in text_places(keys)]


@functools.cache
def site_text(site: str) -> str:
    return json.dumps(SITES[site])


@needs_crds
@settings(quick, max_examples=200)
@given(st.sampled_from(PLACES), hostile, st.sampled_from(TARGETS))
def test_any_text_of_a_site_gives_valid_objects_or_is_refused(
    where: tuple[str, tuple[Any, ...]], value: str, target: str
) -> None:
    name, place = where
    site = json.loads(site_text(name))
    inner = site
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    objects = objects_or_fault(target, site)
    for manifest in (objects or {}).values():
        assert every_fault(manifest, NEWEST) == [], place


@needs_crds
@quick
@given(hostile, st.sampled_from(TARGETS))
@example("NVIDIA H200", "job")
@example("NVIDIA-H200", "job")
def test_a_gpu_type_is_a_label_that_a_node_can_have(gpu_type: str, target: str) -> None:
    resources = {"gpus_per_node": 1, "gpu_type": gpu_type}
    objects = objects_or_fault(target, {}, resources=resources)
    assert objects or gpu_type != "NVIDIA-H200"
    for manifest in (objects or {}).values():
        assert every_fault(manifest, NEWEST) == []
