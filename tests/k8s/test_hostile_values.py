"""Whatever a job file says gets to the pods unchanged, or is refused where it stands."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given

from k8s.hostile import (
    PIECES,
    check_located,
    containers,
    environment,
    expanded,
    few,
    hostile,
    job_text,
    objects_or_fault,
    quick,
)
from k8s.kubectl import kubectl
from k8s.objects import manifests
from k8s.sites import NEUTRAL, TARGETS, render_job
from orchestrator.errors import FaultsError


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
@example("${HOME}", "$${HOME}")
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


@pytest.mark.parametrize("target", TARGETS)
def test_kubectl_reads_what_was_written(target: str) -> None:
    """YAML is read by another program than ours, Go's, with its own ideas of what `y` is."""
    values = {f"V{n}": piece for n, piece in enumerate(PIECES) if piece != "\0"}
    values |= dict.fromkeys(("Y", "N", "yes", "No", "ON", "off", "TRUE", "Null"), "1")
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
