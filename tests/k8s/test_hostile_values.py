"""Whatever a job file says gets to the pods unchanged, or is refused where it stands."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from k8s.kubectl import kubectl
from k8s.objects import manifests, pod_templates
from k8s.rules import every_fault
from k8s.schemas import needs_crds, releases
from k8s.sites import NEUTRAL, SITES, TARGETS, render_job
from orchestrator.errors import FaultsError

NEWEST = releases()[-1]
PIECES = [
    *('"', "'", "\\", "\\n", "`", "@", "%", "|", ">", "&a", "*a", "!!str", "?", "-", "- ", ","),
    *("\n", "\r\n", "\r", "\t", " ", "\n---\n", "...", ": ", ":", " #", "#", "[", "]", "{", "}"),
    *("$", "$$", "$(", ")", "$(HOME)", "$(ORCHESTRATE_POD_IP)", "$$(HOME)", "$(NONE)", "${HOME}"),
    *("{{ name }}", "{% endfor %}", "{# #}", "`id`", "$(id)", "; id", "&& id"),
    *(
        "yes",
        "no",
        "on",
        "y",
        "~",
        "null",
        "true",
        "0x1f",
        "017",
        "0o17",
        "1e3",
        "12:00:00",
        ".inf",
    ),
    *("=", "<<", "2026-11-30", "1_000", "é", "\u4e2d", "\U0001f600", "\u2028", "\u0085", "\u00a0"),
    *("\ufeff", "\x01", "\x1b[31m", "\x7f", "\0", "x" * 5000),
]
hostile = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=6).map("".join)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
few = settings(quick, max_examples=25)


def job_text(site: dict[str, Any], **keys: object) -> str:
    """A job file as JSON, which is YAML; what is not printable in the escapes of YAML."""
    job = {
        "name": "hostile",
        "train": {"model": {"preset": "nano"}, "data": {"python_docs": True}, "steps": 10},
        "clusters": {"site": {"kubernetes": site}},
        **keys,
    }
    text = json.dumps(job, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def objects_or_fault(
    target: str, site: dict[str, Any], **keys: object
) -> dict[str, dict[str, Any]] | None:
    """The objects by kind; None where the job is refused, with the place of the fault."""
    try:
        files = render_job(job_text(site, **keys), target, NEUTRAL).files
    except FaultsError as refusal:
        check_located(refusal)
        return None
    found = [manifests(text) for name, text in files.items() if name.endswith(".yaml")]
    assert {len(documents) for documents in found} == {1}
    return {documents[0]["kind"]: documents[0] for documents in found}


def check_located(refusal: FaultsError) -> None:
    assert re.match(r"job\.yaml:\d+:\d+:? ", str(refusal))


def containers(objects: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        template.spec["containers"][0]
        for manifest in objects.values()
        for template in pod_templates(manifest)
    ]


def expanded(text: str, variables: dict[str, str]) -> str:
    """`text` as the kubelet gives it to a process.

    Kubernetes API reference, Container `args` and EnvVar `value`: a reference $(NAME) becomes the
    variable's value, and stays where there is no such variable; $$ becomes one $.
    """

    def replaced(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replaced, text, flags=re.DOTALL)


def environment(container: dict[str, Any]) -> dict[str, str]:
    """The variables with a value of their own as the process sees them, each from those before."""
    seen = {"ORCHESTRATE_POD_IP": "10.0.0.7"}
    for variable in container["env"]:
        if "value" in variable:
            seen[variable["name"]] = expanded(variable["value"], seen)
    return seen


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("$(A)", "1"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(B)", "$(B)"),
        ("$$", "$"),
        ("a$", "a$"),
        ("$A $(", "$A $("),
    ],
)
def test_the_kubelets_rule_is_that_of_the_reference(text: str, seen: str) -> None:
    assert expanded(text, {"A": "1"}) == seen


@pytest.mark.parametrize("target", TARGETS)
@few
@given(hostile, hostile)
@example("$(HOME)", "$$(Z)")
@example("yes\n---\nkind: Secret", "")
def test_a_variable_arrives_as_it_was_written(target: str, first: str, second: str) -> None:
    objects = objects_or_fault(target, {}, env={"A": first, "Z": second})
    if objects is None:
        assert "\0" in first + second, "only what no process can have is refused"
        return
    for container in containers(objects):
        seen = environment(container)
        assert (seen["A"], seen["Z"]) == (first, second)


@quick
@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8) | hostile)
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


@quick
@given(hostile, hostile)
@example("/a$(HOME)b", "/opt/$$/python")
def test_paths_arrive_as_they_were_written(workdir: str, python: str) -> None:
    site = {"workdir": workdir, "python": python, "launcher_from": "config-map"}
    objects = objects_or_fault("job", site)
    if objects is not None:
        [container] = containers(objects)
        args = [expanded(word, environment(container)) for word in container["args"]]
        assert args[args.index("--workdir") + 1] == workdir
        assert expanded(container["command"][0], environment(container)) == python
        assert "10.0.0.7" in args, "the pod's own address is expanded"


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


@pytest.mark.parametrize("target", TARGETS)
def test_kubectl_reads_what_was_written(target: str) -> None:
    """YAML is read by another program than ours, Go's, with its own ideas of what `y` is."""
    values = {f"V{n}": piece for n, piece in enumerate(PIECES) if piece != "\0"}
    files = render_job(job_text({}, env=values), target, NEUTRAL).files
    for name, text in files.items():
        if name.endswith(".yaml"):
            [here] = manifests(text)
            here["metadata"].setdefault("annotations", {})["read"] = "1"
            words = ("annotate", "--local", "--filename=-", "--output=json", "read=1")
            assert json.loads(kubectl(*words, given=text)) == here


@pytest.mark.parametrize("target", TARGETS)
@few
@given(hostile)
@example(" \n\n  leading and trailing \n ")
def test_the_trainer_reads_the_bytes_that_were_rendered(target: str, value: str) -> None:
    train = {"model": {"preset": "nano"}, "data": {"text": value}, "steps": 10}
    site = {"launcher_from": "config-map"}
    try:
        files = render_job(job_text(site, train=train), target, NEUTRAL).files
    except FaultsError as refusal:
        check_located(refusal)
        return
    [config] = manifests(files["config.yaml"])
    assert config["data"] == {name: files.get(name, node_py()) for name in config["data"]}
    assert {"trainer.json", "launch.json", "node.py"} == set(config["data"])


def node_py() -> str:
    from trainer import node

    with open(node.__file__, encoding="utf-8") as file:
        return file.read()
