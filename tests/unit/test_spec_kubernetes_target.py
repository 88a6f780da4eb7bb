"""spec: what a job cannot have on a Kubernetes cluster, by its target and its profile."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import Fault, FaultsError
from orchestrator.profiles import ClusterProfile, embedded_profiles, find_profiles
from orchestrator.source import Document, parse_document
from orchestrator.spec import fields, resolve_job
from orchestrator.spec.kubernetes_target import KUBERNETES_TARGETS, target_notes

TARGETS = list(KUBERNETES_TARGETS)
JOB: dict[str, Any] = {
    "name": "demo",
    "train": {"model": {"preset": "nano"}, "data": {"python_docs": True}, "steps": 1},
}


def profile_of(target: str, **kubernetes: Any) -> ClusterProfile:
    facts = {"runs": {"pvc": "runs"}} | kubernetes
    entry = {"name": "k", "target": target, "runs_root": "/runs", "kubernetes": facts}
    return ClusterProfile.model_validate(entry)


def faults(profile: ClusterProfile, **keys: Any) -> tuple[Fault, ...]:
    return faults_of(parse_document(json.dumps(JOB | keys).encode(), "f"), profile)


def faults_of(document: Document, profile: ClusterProfile) -> tuple[Fault, ...]:
    """The faults of a job on a cluster; none for a good one."""
    try:
        resolve_job(document, profile)
    except FaultsError as error:
        return error.faults
    return ()


@pytest.mark.parametrize("target", TARGETS)
def test_the_neutral_profile_takes_a_job_of_two_nodes(target: str) -> None:
    (neutral,) = [p for p in embedded_profiles().profiles.values() if p.target == target]
    assert faults(neutral, resources={"nodes": 2}) == ()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("keys", "advice"),
    [
        ({"sweep": {"grid": {"train.seed": [1, 2]}}}, "--set name=..."),
        ({"after": {"other": "afterok"}}, "orchestrate wait"),
    ],
)
def test_what_kubernetes_does_not_have_is_refused_with_what_to_do(
    target: str, keys: dict[str, Any], advice: str
) -> None:
    (fault,) = faults(profile_of(target), **keys)
    assert fault.key in keys
    assert advice in fault.fix


@pytest.mark.parametrize("target", TARGETS)
def test_run_folders_need_a_volume(target: str) -> None:
    (fault,) = faults(profile_of(target, runs={}))
    assert (fault.key, fault.fix[:26]) == ("kubernetes.runs", "write `runs: {pvc: NAME}` ")


def test_run_folders_of_one_pod_may_end_with_it_and_those_of_two_may_not() -> None:
    profile = profile_of("job", runs={"empty_dir": True})
    assert faults(profile) == ()
    (fault,) = faults(profile, resources={"nodes": 2})
    assert fault.key == "kubernetes.runs.empty_dir"


@pytest.mark.parametrize(("mount", "free"), [("/runs/", 0), ("/runs/x", 0), ("/run", 1), ("/", 0)])
def test_a_volume_leaves_the_run_folders_alone(mount: str, free: int) -> None:
    found = faults(profile_of("job", volumes={"v": {"mount": mount, "pvc": "x"}}))
    assert [fault.key for fault in found] == ["kubernetes.volumes.v.mount"] * (1 - free)


@pytest.mark.case("L37")
def test_a_trainjob_has_no_time_after_which_its_jobset_goes() -> None:
    (fault,) = faults(profile_of("trainjob", keep_finished="1d"))
    assert "begin anew" in fault.message
    assert faults(profile_of("jobset", keep_finished="1d")) == ()


def test_a_fault_of_the_cluster_is_shown_in_the_file_that_gave_the_value(tmp_path: Any) -> None:
    text = """\
clusters:
  k:
    target: trainjob
    runs_root: /runs
    kubernetes:
      runs: {pvc: runs}
      keep_finished: 2d
"""
    (tmp_path / "c.yaml").write_text(text, "utf-8")
    profile = find_profiles("c.yaml", {}, tmp_path).choose("k")
    (fault,) = faults(profile)
    assert fault.where() == "c.yaml:7:7"


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ("runs_root: ./runs", "runs_root"),
        ("runs_root: /a:b", "runs_root"),
        ("runs_root: /tmp", "runs_root"),
        ("runs_root: /orchestrate/runs", "runs_root"),
        ("{}", "runs_root"),
        ("{runs_root: /runs, ssh: login}", "ssh"),
        ("{runs_root: /runs, workdir: /work}", "workdir"),
    ],
)
def test_a_profile_that_no_pod_can_follow_is_refused(keys: str, path: str, tmp_path: Any) -> None:
    keys = keys.strip("{}")
    text = f"clusters: {{k: {{target: job{', ' if keys else ''}{keys}}}}}\n"
    (tmp_path / "c.yaml").write_text(text, "utf-8")
    with pytest.raises(FaultsError) as caught:
        find_profiles("c.yaml", {}, tmp_path)
    assert [fault.key for fault in caught.value.faults] == [f"clusters.k.{path}"]


def host_names(target: str, name: str, num_nodes: int) -> list[str]:
    """Names that controllers make of a run's name, which are all DNS labels."""
    last = num_nodes - 1
    if target == "pytorchjob":
        return [name, f"{name}-master-0", f"{name}-worker-{last}"]
    if target == "job":
        return [name, f"{name}-{last}"]
    # A pod of a JobSet has five letters more, and its webhook counts them.
    return [name, f"{name}-node-0", f"{name}-node-0-{last}", f"{name}-node-0-{last}-x7k2p"]


@settings(deadline=None)
@given(
    st.sampled_from(TARGETS),
    st.from_regex(r"\A[a-z]([a-z0-9-]{0,50}[a-z0-9])?\Z"),
    st.integers(1, 10_000) | st.sampled_from([2, 10, 11, 100, 101, 1000, 1001, 10_000]),
)
def test_all_names_that_are_made_of_a_runs_fit(target: str, name: str, num_nodes: int) -> None:
    found = faults(profile_of(target), name=name, resources={"nodes": num_nodes})
    longest = max(map(len, host_names(target, name, num_nodes)))
    assert [fault.key for fault in found] == (["name"] if longest > 63 else [])
    for fault in found:
        room = int(fault.fix.split()[-2])
        assert faults(profile_of(target), name=name[:room].strip("-") or "a") == ()


def test_a_name_of_52_letters_fits_a_hundred_workers() -> None:
    keys = {"name": "a" * 52, "resources": {"nodes": 128}}
    assert faults(profile_of("pytorchjob"), **keys) == ()
    assert faults(profile_of("job"), **keys) == ()
    (fault,) = faults(profile_of("jobset"), **keys)
    assert fault.fix == "shorten it to 46 characters"


def notes(target: str, *, nodes: Any = 1, **kubernetes: Any) -> str:
    profile = profile_of(target, **kubernetes)
    document = Document("f", "", JOB | {"resources": {"nodes": nodes}}, {})
    return "\n".join(target_notes(resolve_job(document, profile).spec, profile))


def test_what_the_user_should_know_is_told_where_it_matters() -> None:
    assert notes("pytorchjob") == notes("jobset", nodes=2) == ""
    assert "init container" in notes("pytorchjob", nodes=2)
    assert notes("pytorchjob", nodes=2, pod_security="baseline") == ""
    assert notes("pytorchjob", nodes={"min": 1, "max": 2}) == ""
    assert "gone with the pod" in notes("job", runs={"empty_dir": True})
    host: dict[str, Any] = {"runs": {"host_path": "/lustre"}, "pod_security": "none"}
    assert "shared file system" in notes("job", nodes=2, **host)
    assert notes("local", nodes=2, runs={"empty_dir": True}) == ""


PATHS = [f.path for f in fields() if f.path.startswith("kubernetes")]
LEAVES = [None, True, 0, -1, 2.5, 10**30, "", "x", "/x", "5m", "1Gi", "${A}", "a b", "s:/x"]
JSON = st.recursive(
    st.sampled_from(LEAVES) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([path.rpartition(".")[2] for path in PATHS] + ["x", "a/b", ""]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


def put(data: dict[str, Any], path: str, value: Any) -> None:
    """Store a value; N in the path makes a list of one item."""
    name, _, rest = path.partition(".")
    if not rest:
        data[name] = value
    elif rest.startswith("N."):
        data[name] = [{}]
        put(data[name][0], rest[2:], value)
    else:
        if not isinstance(data.get(name), dict):
            data[name] = {}
        put(data[name], rest, value)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from(PATHS), JSON, min_size=1, max_size=4),
    st.sampled_from(TARGETS),
)
def test_any_data_makes_a_job_or_faults_in_words(values: dict[str, Any], target: str) -> None:
    override: dict[str, Any] = {}
    for path, value in values.items():
        put(override, path, value)
    data = JOB | {"clusters": {"k": override}}
    for fault in faults_of(Document("f", "", data, {}), profile_of(target)):
        assert "Input should" not in fault.message
        assert "Value error" not in fault.message
        assert fault.render()
