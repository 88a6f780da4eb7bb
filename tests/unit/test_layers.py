"""spec.layers: what wins over what, where each value comes from, and faults in each layer."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import FaultsError, Position
from orchestrator.profiles import ClusterProfile
from orchestrator.source import Document, expand, parse_document
from orchestrator.spec import JobSpec, ResolvedJob, resolve_job
from orchestrator.spec.base import Part
from orchestrator.spec.keys import ENTRY_MARKS
from orchestrator.spec.layers import Layer, merge, set_layer
from orchestrator.spec.resolve import _STAND_INS, _leaves

JOB = """\
name: demo
resources: {nodes: 2, cpus_per_rank: 3}
train:
  model: {preset: nano}
  data: {text: [a, b]}
  steps: 10
clusters:
  big:
    resources: {nodes: 8}
    train: {data: {text: null, tokens: [c]}}
"""
PROFILES = """\
clusters:
  big:
    target: local
    defaults:
      resources: {nodes: 4, memory: 80GiB}
      env: {A: "1"}
"""


def profile(name: str = "big", defaults: dict[str, Any] | None = None) -> ClusterProfile:
    if defaults is not None:
        return ClusterProfile(name=name, target="local", defaults=defaults)
    document = parse_document(PROFILES.encode(), "clusters.yaml")
    entry = document.data["clusters"]["big"]["defaults"]
    return ClusterProfile(name=name, target="local", defaults=entry, document=document)


def resolve(*sets: str, text: str = JOB, cluster: ClusterProfile | None = None) -> ResolvedJob:
    return resolve_job(parse_document(text.encode(), "job.yaml"), cluster, sets)


def test_each_layer_wins_over_the_weaker_ones() -> None:
    job = resolve("resources.cpus_per_rank=5", "env.B=2", cluster=profile())
    assert job.spec.resources.nodes == 8
    assert job.spec.resources.cpus_per_rank == 5
    assert job.spec.resources.memory == 80 * 2**30
    assert job.spec.env == {"A": "1", "B": "2"}
    assert job.spec.train.data.tokens == ("c",)
    assert job.spec.train.data.text is None


def test_each_value_knows_where_it_comes_from() -> None:
    job = resolve("resources.cpus_per_rank=5", "env.B=2", cluster=profile())
    labels = {path: origin.label for path, origin in job.origins.items()}
    assert labels[("resources", "nodes")] == "clusters.big in job.yaml:9:17"
    assert labels[("resources", "cpus_per_rank")] == "--set"
    assert labels[("resources", "memory")] == "profile big (clusters.yaml:5:29)"
    assert labels[("train", "steps")] == "job.yaml:6:3"
    assert labels[("train", "data", "tokens")] == "clusters.big in job.yaml:10:32"
    assert labels[("env", "A")] == "profile big (clusters.yaml:6:13)"
    assert labels[("env", "B")] == "--set"
    assert labels[("timeouts", "step")] == "default"


def test_origins_cover_every_value_of_the_job() -> None:
    job = resolve()
    assert set(job.origins) == set(_leaves(job.spec, ()))
    assert ("parallelism", "ddp", "static_graph") in job.origins


def test_another_clusters_override_does_not_apply() -> None:
    assert resolve(cluster=profile("small", {})).spec.resources.nodes == 2
    assert resolve().spec.resources.nodes == 2


def test_faults_of_all_layers_come_at_once_each_in_its_own_file() -> None:
    text = JOB.replace("nodes: 8", "nodes: x").replace("steps: 10", "steps: y")
    bad = PROFILES.replace("80GiB", "80G")
    document = parse_document(bad.encode(), "clusters.yaml")
    defaults = document.data["clusters"]["big"]["defaults"]
    cluster = ClusterProfile(name="big", target="local", defaults=defaults, document=document)
    with pytest.raises(FaultsError) as caught:
        resolve("resources.nodes=0", "train.batch.mico=1", text=text, cluster=cluster)
    assert [(fault.where(), fault.key) for fault in caught.value.faults] == [
        ("job.yaml:6:10", "train.steps"),
        ("job.yaml:9:24", "clusters.big.resources.nodes"),
        ("clusters.yaml:5:37", "clusters.big.defaults.resources.memory"),
        ("--set:1:17", "resources.nodes"),
        ("--set:2:1", "train.batch.mico"),
    ]


def test_a_fault_that_a_stronger_layer_hides_is_told_all_the_same() -> None:
    with pytest.raises(FaultsError, match=r"job\.yaml:2:20 resources\.nodes"):
        resolve("resources.nodes=3", text=JOB.replace("nodes: 2", "nodes: x"))


def test_a_fault_between_layers_is_where_the_value_was_given() -> None:
    with pytest.raises(FaultsError) as caught:
        resolve("train.model.heads=3")
    (fault,) = caught.value.faults
    assert fault.where() == "--set:1:19"
    assert fault.source_line == "train.model.heads=3"
    with pytest.raises(FaultsError) as caught:
        resolve("train.data.python_docs=true", cluster=profile())
    assert [fault.where() for fault in caught.value.faults] == ["--set:1:1"]


def test_what_is_missing_is_looked_for_in_the_job_file() -> None:
    with pytest.raises(FaultsError) as caught:
        resolve("train.seed=1", text=JOB.replace("  steps: 10\n", ""), cluster=profile())
    (fault,) = caught.value.faults
    assert (fault.where(), fault.key) == ("job.yaml:3:1", "train.steps")


def test_a_profile_made_in_code_is_named_in_faults() -> None:
    with pytest.raises(FaultsError, match=r"profile big resources\.nodes: a whole number"):
        resolve(cluster=profile(defaults={"resources": {"nodes": "x"}}))


def test_a_profile_may_give_what_the_job_file_lacks() -> None:
    defaults = {"train": {"steps": 7}}
    text = JOB.replace("  steps: 10\n", "")
    assert resolve(text=text, cluster=profile(defaults=defaults)).spec.train.steps == 7


def test_sections_that_are_only_comments_are_empty() -> None:
    text = f"{JOB}network:\n  # interface: eth0\nenv:\n"
    assert resolve(text=text).spec.network.backend == "auto"


VARIABLES = """\
name: demo
train:
  model: {preset: nano}
  data: {text: ['${A}', b, '$${C}']}
  steps: 10
env: {D: '${D:-1}'}
clusters:
  big: {env: {D: '${E}', F: '${F}'}}
"""


def test_variables_that_are_left_are_told_unless_a_stronger_layer_replaces_them() -> None:
    def left(*sets: str, cluster: ClusterProfile | None = None) -> list[str]:
        return [
            fault.where() for fault in resolve(*sets, text=VARIABLES, cluster=cluster).variables
        ]

    assert left() == ["job.yaml:4:17", "job.yaml:6:10"]
    assert left("env.D=1") == ["job.yaml:4:17"]
    assert left("env.D=${X}") == ["job.yaml:4:17"]
    assert left("train.data={text: x}", "env.D=1") == []
    assert left("train.data.text=x", "env.D=1") == []
    big = profile(defaults={})
    assert left(cluster=big) == ["job.yaml:4:17", "job.yaml:8:18", "job.yaml:8:29"]
    assert left("env.D=1", cluster=big) == ["job.yaml:4:17", "job.yaml:8:29"]


def test_the_escape_of_variables_means_the_same_with_and_without_an_environment() -> None:
    document = parse_document(VARIABLES.encode(), "job.yaml")
    assert resolve_job(document).spec.train.data.text == ("${A}", "b", "${C}")
    expanded = resolve_job(expand(document, {"A": "a", "E": "", "F": ""}))
    assert expanded.spec.train.data.text == ("a", "b", "${C}")
    assert expanded.variables == ()


def test_faults_of_the_document_itself_are_not_lost() -> None:
    with pytest.raises(FaultsError, match="on line 1 already"):
        resolve(text=f"{JOB}name: other\n")


@pytest.mark.parametrize(
    ("sets", "data"),
    [
        (["a.b=2"], {"a": {"b": 2}}),
        (["a.b=2", "a.b=3"], {"a": {"b": 3}}),
        (["a=2", "a.b=3"], {"a": {"b": 3}}),
        (["a.b=2", "a=3"], {"a": 3}),
        (["a=x=y"], {"a": "x=y"}),
        (["a="], {"a": None}),
        (["a=[1, x]"], {"a": [1, "x"]}),
        (["env.A=1"], {"env": {"A": "1"}}),
        (["env.A=[x"], {"env": {"A": "[x"}}),
        (["env.A='1'"], {"env": {"A": "1"}}),
        (["env.A="], {"env": {"A": ""}}),
        (["env.A= x "], {"env": {"A": " x "}}),
        (["network.env.A=true"], {"network": {"env": {"A": "true"}}}),
        (["a=b\nc"], {"a": "b\nc"}),
    ],
)
def test_set_options(sets: list[str], data: dict[str, Any]) -> None:
    layer, faults = set_layer(sets)
    assert faults == []
    assert layer.data == data


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("a", "there is no = in it"),
        ("", "there is no = in it"),
        ("=1", "empty"),
        ("a..b=1", "an empty part"),
        ("a[0]=1", "set the whole list"),
        ("a=[1", "not closed"),
    ],
)
def test_set_options_that_are_none(option: str, message: str) -> None:
    _, (fault,) = set_layer(["x=1", option])
    assert message in fault.message
    assert fault.position == Position(2, 1)
    assert fault.source_line == option


LEAVES = st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
TREES = st.dictionaries(
    st.sampled_from("abc"),
    st.recursive(LEAVES, lambda t: st.dictionaries(st.sampled_from("abc"), t, max_size=3)),
    max_size=3,
)


def lay(name: str, data: dict[str, Any]) -> Layer:
    return Layer("job", Document(name, "", data, {}), (), data)


@settings(deadline=None)
@given(TREES, TREES)
def test_the_stronger_layer_is_in_the_result_as_it_is(weak: Any, strong: Any) -> None:
    below, above = lay("weak", weak), lay("strong", strong)
    merged = merge([below, above])
    for path, value in leaves(strong, ()):
        assert at(merged.data, path) == value
        assert merged.owners[path] is above
    for path, value in leaves(merged.data, ()):
        owner = merged.owners[path]
        assert at(dict(owner.data), path) == value


@settings(deadline=None)
@given(TREES)
def test_merging_leaves_its_input_alone(tree: Any) -> None:
    before = repr(tree)
    merge([lay("a", tree), lay("b", {"a": {"a": 1, "new": 2}})])
    assert repr(tree) == before


def leaves(value: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict):
        return [leaf for name, child in value.items() for leaf in leaves(child, (*path, name))]
    return [(path, value)]


def at(data: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        data = data[part]
    return data


def test_every_required_key_has_a_stand_in() -> None:
    required = set()

    def walk(model: type[Part], path: tuple[str, ...]) -> None:
        for name, field in model.model_fields.items():
            if field.is_required():
                required.add((*path, name))
            if typing.get_origin(field.annotation) in ENTRY_MARKS:
                continue  # an entry that lacks a key is left out as a whole
            for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
                if isinstance(kind, type) and issubclass(kind, Part):
                    walk(kind, (*path, name))

    walk(JobSpec, ())
    assert required == set(_STAND_INS)
