"""Sweeps: which elements a job file makes, and what is wrong with it, at its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import Fault, FaultsError, UserError
from orchestrator.plan import LaunchPlan, make_plan
from orchestrator.profiles import embedded_profiles
from orchestrator.render import render
from orchestrator.source import Document, parse_document
from orchestrator.spec import ResolvedJob, resolve_job

JOB = """\
name: demo
train:
  model: {preset: nano}
  data: {synthetic: {samples: 64}}
  steps: 10
"""


def resolved(sweep: str, *sets: str, cluster: str = "local") -> ResolvedJob:
    document = parse_document(f"{JOB}{sweep}\n".encode(), "job.yaml")
    return resolve_job(document, embedded_profiles().choose(cluster), sets)


def faults(sweep: str, *sets: str) -> list[tuple[str, str, str, str]]:
    """Place, key, message and fix of each."""
    try:
        resolved(sweep, *sets)
    except FaultsError as error:
        return [_shown(fault) for fault in error.faults]
    return []


def _shown(fault: Fault) -> tuple[str, str, str, str]:
    where = fault.where().removeprefix("job.yaml:")
    return where, fault.key, fault.message, fault.fix


def plan_of(sweep: str, *sets: str, cluster: str = "slurm") -> LaunchPlan:
    job = resolved(sweep, *sets, cluster=cluster)
    return make_plan(job.spec, embedded_profiles().choose(cluster), job.elements)


def test_the_last_key_changes_fastest() -> None:
    sweep = "sweep: {grid: {train.seed: [1, 2], train.optimizer.lr: [0.1, 0.2]}}"
    seeds_and_rates = [
        (e.spec.train.seed, e.spec.train.optimizer.lr) for e in resolved(sweep).elements
    ]
    assert seeds_and_rates == [(1, 0.1), (1, 0.2), (2, 0.1), (2, 0.2)]


def test_each_combination_goes_with_each_entry_of_the_list() -> None:
    sweep = """\
sweep:
  grid: {train.seed: [1, 2]}
  list:
    - {train.model: {preset: nano, dropout: 0.1}, train.optimizer.betas: [0.5, 0.6]}
    - checkpoint.every: 5"""
    elements = resolved(sweep).elements
    assert [element.values for element in elements[:2]] == [
        {"train.seed": 1, "train.model": {"preset": "nano", "dropout": 0.1},
         "train.optimizer.betas": [0.5, 0.6]},
        {"train.seed": 1, "checkpoint.every": 5},
    ]  # fmt: skip
    assert len(elements) == 4
    first, second = elements[0].spec, elements[1].spec
    assert (first.train.model.dropout, first.train.optimizer.betas) == (0.1, (0.5, 0.6))
    assert (second.train.model.dropout, second.checkpoint.every) == (0.0, 5)


def test_no_sweep_has_no_elements_and_a_cluster_may_leave_it_out() -> None:
    assert resolved("").elements == ()
    text = "sweep: {grid: {train.seed: [1, 2]}}\nclusters: {local: {sweep: null}}"
    assert resolved(text).elements == ()
    assert len(resolved(text, cluster="slurm").elements) == 2
    assert resolved(text, "sweep.at_once=2", cluster="slurm").spec.sweep.at_once == 2  # type: ignore[union-attr]


KEYS = st.sampled_from(["train.seed", "train.steps", "checkpoint.keep", "train.batch.micro"])


@settings(deadline=None)
@given(st.dictionaries(KEYS, st.lists(st.integers(1, 99), unique=True, min_size=1, max_size=4)))
def test_a_grid_is_the_product_of_its_lists(grid: dict[str, list[int]]) -> None:
    job = json.loads(json.dumps(resolve_data(grid)))
    elements = resolve_job(Document("f", "", job, {})).elements
    expected: list[dict[str, int]] = [{}]
    for key, values in grid.items():
        expected = [{**before, key: value} for before in expected for value in values]
    assert [element.values for element in elements] == (expected if grid else [])
    for element in elements:
        dumped: Any = element.spec.model_dump()
        for key, value in element.values.items():
            section, *rest = key.split(".")
            found = dumped[section]
            for part in rest:
                found = found[part]
            assert found == value


def resolve_data(grid: dict[str, list[int]]) -> dict[str, Any]:
    data: dict[str, Any] = dict(parse_document(JOB.encode(), "f").data)
    return data | ({"sweep": {"grid": grid}} if grid else {})


NOT_TRAINERS = "cannot differ within a sweep: it is no key of the trainer"
FAULTS = [
    ("sweep: {}", "6:1", "sweep", "it has 0 elements; allowed are 1 to 1000", "add grid or list"),
    ("sweep: {at_once: 2}", "6:1", "sweep", "it has 0 elements", "add grid or list, or remove"),
    ("sweep: {grid: {train.seed: 5}}", "6:28", "sweep.grid.train.seed",
     "a list of values belongs here", "write it in brackets"),
    ("sweep: {grid: {train.seed: []}}", "6:28", "sweep.grid.train.seed",
     "a list of values belongs here, with at least one", "write it in brackets"),
    ("sweep: {grid: {train: {seed: [1]}}}", "6:23", "sweep.grid.train",
     "a list of values belongs here", "keys have dots"),
    ("sweep: {grid: {resources.nodes: [1, 2]}}", "6:16", "sweep.grid.resources.nodes",
     f'"resources.nodes" {NOT_TRAINERS}', "submit one job for each value, with --set"),
    ("sweep: {list: [{name: a}]}", "6:17", "sweep.list[0].name", NOT_TRAINERS, "whole key"),
    ("sweep: {grid: {train: [1]}}", "6:16", "sweep.grid.train", NOT_TRAINERS, "whole key"),
    ("sweep: {list: [{}]}", "6:16", "sweep.list[0]", "an element without values",
     "at least one key"),
    ("sweep: {list: {train.seed: 1}}", "6:15", "sweep.list", "a list belongs here", ""),
    ("sweep: {at_once: 0, grid: {train.seed: [1]}}", "6:18", "sweep.at_once",
     "0 is not at least 1", "from 1 to 1000"),
    ("sweep: {grid: {train.seed: [1]}, list: [{train.seed: 2}]}", "6:42",
     "sweep.list[0].train.seed", "train.seed is in grid too", "keep one of the two"),
    ("sweep: {list: [{train.optimizer.lr: 0.1, train.optimizer: {lr: 0.2}}]}", "6:17",
     "sweep.list[0].train.optimizer.lr", "is inside of train.optimizer, which differs too", "keep"),
    ("sweep: {grid: {train.seed: [1, x]}}", "6:32", "sweep.grid.train.seed[1]",
     'element 1 (train.seed=x): a whole number belongs here, not "x"', "give a whole number"),
    ("sweep: {list: [{train.seed: 1}, {train.seeed: 2}]}", "6:34", "sweep.list[1].train.seeed",
     "element 1 (train.seeed=2): unknown key", 'did you mean "seed"?'),
    ("sweep: {grid: {train.profiler: [1]}}", "6:16", "sweep.grid.train.profiler",
     "element 0 (train.profiler=1): not supported yet", "remove it"),
    ("sweep: {grid: {train.seed: [1, 2, 1]}}", "6:35", "sweep.grid.train.seed[2]",
     "element 2 (train.seed=1) is the same run as element 0", "remove one of the two"),
    ("sweep: {grid: {train.steps: [10, 5], train.schedule.warmup_steps: [7]}}", "6:68",
     "sweep.grid.train.schedule.warmup_steps[0]", "element 1 (train.steps=5,", ""),
    ("sweep: {size: 3, grid: {train.seed: [1]}}", "6:9", "sweep.size", "unknown key", "grid"),
]  # fmt: skip


@pytest.mark.parametrize(("sweep", "where", "key", "message", "fix"), FAULTS)
def test_a_fault_is_told_at_its_place(
    sweep: str, where: str, key: str, message: str, fix: str
) -> None:
    ((place, name, said, advice),) = faults(sweep)
    assert (place, name) == (where, key)
    assert message in said
    assert fix in advice


def test_all_faults_of_all_elements_come_at_once_and_each_once() -> None:
    sweep = "sweep: {grid: {train.optimizer.lr: [-1, 0.1, 200], train.seed: [1, -2]}}"
    assert [key for _, key, _, _ in faults(sweep)] == [
        "sweep.grid.train.optimizer.lr[0]",
        "sweep.grid.train.optimizer.lr[2]",
        "sweep.grid.train.seed[1]",
    ]


def test_too_many_elements_are_not_made() -> None:
    many = json.dumps(list(range(1000)))
    sweep = f"sweep: {{grid: {{train.seed: {many}, train.steps: {many}, checkpoint.keep: {many}}}}}"
    ((where, _, message, fix),) = faults(sweep)
    assert (where, fix) == ("6:1", "shorten its lists")
    assert message == "it has 1000000000 elements; allowed are 1 to 1000"


def test_a_fault_of_the_job_itself_is_told_without_the_elements() -> None:
    ((where, key, _, _),) = faults("resources: {nodes: 0}\nsweep: {grid: {train.seed: [x]}}")
    assert (where, key) == ("6:20", "resources.nodes")


def test_submitit_submits_no_sweep() -> None:
    text = "resources: {time_limit: 1h}\nlauncher: submitit\nsweep: {grid: {train.seed: [1]}}"
    ((where, _, message, _),) = faults(text)
    assert (where, message) == ("8:1", "launcher: submitit submits one run, no sweep")


def test_a_sweep_by_set() -> None:
    ((where, key, message, _),) = faults("", "sweep.list=[{train.seed: 1}, {train.seed: x}]")
    assert (where, key) == ("--set:1:12", "sweep.list[1].train.seed")
    assert message.startswith("element 1 (train.seed=x): a whole number")


@pytest.mark.parametrize("cluster", ["local", "slurm"])
def test_what_is_rendered(cluster: str) -> None:
    sweep = "sweep: {grid: {train.seed: [4, 5]}, at_once: 1}"
    files = render(plan_of(sweep, cluster=cluster)).files
    assert json.loads(files["sweep.json"]) == {
        "version": 1, "at_once": 1, "values": [{"train.seed": 4}, {"train.seed": 5}],
    }  # fmt: skip
    assert "trainer.json" not in files
    alone = render(plan_of("", "train.seed=5", cluster=cluster)).files
    assert files["trainer-00001.json"] == alone["trainer.json"]
    assert files["launch.json"] == alone["launch.json"]
    script = files.get("job.sh", "")
    assert ("run_dir=$1/$SLURM_ARRAY_TASK_ID" in script) == (cluster == "slurm")
    assert "SBATCH --array" not in script


def test_an_element_that_changes_the_job_itself_is_refused() -> None:
    sweep = "resources: {nodes: {min: 2, max: 4}}\n"
    sweep += "sweep: {grid: {train.batch.accumulation: [1, 3]}}"
    with pytest.raises(UserError, match="element 1 changes node_sizes of the job itself"):
        plan_of(sweep)


@pytest.mark.parametrize("network", ["", "network: {interface: eth0}\n"])
@pytest.mark.parametrize("cluster", ["local", "slurm"])
def test_elements_may_differ_in_where_sums_are_made(network: str, cluster: str) -> None:
    text = f"resources: {{gpus_per_node: 1}}\nparallelism: {{strategy: full_shard}}\n{network}"
    text += "sweep: {grid: {parallelism.cpu_offload: [false, true]}}"
    sweep = plan_of(text, cluster=cluster).sweep
    assert sweep is not None
    assert [t["backend"] for t in sweep.trainers] == ["nccl", "cpu:gloo,cuda:nccl"]


def test_a_plan_without_its_elements_is_a_mistake_of_the_program() -> None:
    job = resolved("sweep: {grid: {train.seed: [1]}}")
    with pytest.raises(ValueError, match="elements of the sweep are not given"):
        make_plan(job.spec, embedded_profiles().choose("local"))
