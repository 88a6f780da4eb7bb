"""What advice says to write into a job file and to take out of it makes the plan it names."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from orchestrator.cli import orchestrate
from orchestrator.cli.common import load_job
from orchestrator.estimate.lines import changes
from orchestrator.estimate.setting import Setting

CLUSTERS = """\
default: site
clusters:
  site: {target: slurm, hardware: {card: h100-sxm, between: {bandwidth: 10GB/s, latency: 5us}}}
  small: {target: slurm, hardware: {gpu_memory: 3GiB}}
  unknown: {target: slurm}
"""
MODEL = {"layers": 8, "heads": 8, "width": 1024, "context": 1024, "vocab_size": 32000}
LARGE = {"layers": 32, "heads": 32, "width": 4096, "context": 2048, "vocab_size": 32000}

Plan = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    sites = tmp_path / "sites.yaml"
    sites.write_text(CLUSTERS)
    monkeypatch.setenv("ORCHESTRATE_CLUSTERS", str(sites))
    return tmp_path


def write(folder: Path, parallelism: Plan, batch: Plan | None = None, **resources: Any) -> Path:
    """A job; `model` and `sweep` are taken out of the resources."""
    job: Plan = {
        "name": "lines",
        "parallelism": {"precision": "bf16", **parallelism},
        "train": {
            "model": resources.pop("model", MODEL),
            "data": {"python_docs": True},
            "batch": batch or {"micro": 4},
            "steps": 100,
        },
    }
    job.update({name: resources.pop(name) for name in ["sweep"] if name in resources})
    job["resources"] = {"nodes": 1, "gpus_per_node": 8, **resources}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def invoke(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(orchestrate, ["plan", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def answer(*words: object) -> Plan:
    result = CliRunner().invoke(orchestrate, ["plan", *map(str, words), "--json"])
    found: Plan = json.loads(result.stdout)
    return found


def changed(job: Path, plan: Plan) -> Path:
    """The job file as the advice says that it should be."""
    found = yaml.safe_load(job.read_text())
    for key in plan["unset"]:
        *sections, last = key.split(".")
        section = found
        for name in sections:
            section = section[name]
        del section[last]
    for key, value in plan["set"].items():
        *sections, last = key.split(".")
        section = found
        for name in sections:
            section = section.setdefault(name, {})
        section[last] = value
    path = job.with_name("changed.yaml")
    path.write_text(yaml.safe_dump(found))
    return path


WRITTEN: list[tuple[Plan, Plan]] = [
    ({"strategy": "ddp", "ddp": {"bucket_cap_mb": 25, "hook": "bf16"}}, {}),
    ({"strategy": "full_shard", "fsdp": {"version": 2, "prefetch_backward": 2}}, {}),
    ({"strategy": "full_shard", "wrap": {"by": "block"}, "reductions": "bf16"}, {"nodes": 2}),
    ({"strategy": "hybrid_shard", "shard_group": 2, "buffers": "bf16"}, {"nodes": 2}),
    ({"strategy": "hybrid_shard", "shard_group": 16, "fsdp": {"across_nodes": True}}, {"nodes": 4}),
    ({"strategy": "ddp", "activation_checkpointing": "full", "activation_checkpointing_every": 2},
     {}),
    ({"strategy": "dp"}, {"gpus_per_node": 4, "ranks_per_node": 1}),
    ({"strategy": "no_shard", "gradient_sync": "each", "fsdp": {"version": 1}},
     {"nodes": 3, "gpus_per_node": 2}),
    ({"strategy": "full_shard", "tensor": 8}, {}),
    ({"strategy": "full_shard", "cpu_offload": True}, {"nodes": {"min": 1, "max": 2}}),
    ({"strategy": "ddp"}, {"gpus_per_node": 0, "ranks_per_node": 2, "memory": "6GiB"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("cluster", "parallelism", "resources"),
    [(["site", "small"][at % 2], *one) for at, one in enumerate(WRITTEN)],
)
def test_the_job_as_advised_has_the_figures_that_were_promised(
    folder: Path, cluster: str, parallelism: Plan, resources: Plan
) -> None:
    job = write(folder, parallelism, {"micro": 4, "accumulation": 2}, **resources)
    advice = answer(job, "--cluster", cluster)["advice"]
    plans = [advice["best"], advice["runner_up"], *(one["plan"] for one in advice["remedies"])]
    plans = [plan for plan in plans if plan is not None]
    assert plans
    for plan in plans:
        again = answer(changed(job, plan), "--cluster", cluster)
        assert again["setting"] == plan["setting"]
        assert again["memory"] == plan["memory"]
        assert again["step_s"] == plan["step_s"]
        assert again["fits"]
    if advice["best"]:
        best = answer(changed(job, advice["best"]), "--cluster", cluster)["advice"]["best"]
        assert (best["set"], best["unset"]) == ({}, [])


def test_the_text_says_what_to_remove(folder: Path) -> None:
    job = write(folder, WRITTEN[3][0], nodes=2, gpus_per_node=2, model=LARGE)
    _, text = invoke(job)
    assert "remove from it: parallelism." in text
    assert "The job file says so already" not in text


def test_a_group_that_is_the_default_is_written_over_another(folder: Path) -> None:
    options = {"strategy": "hybrid_shard", "shard_group": 2}
    spec = load_job(write(folder, options, nodes=4, gpus_per_node=6), None, None, []).resolved.spec
    wanted = dataclasses.replace(Setting.of(spec), shard_group=6)
    assert changes(spec, wanted) == ({"parallelism.shard_group": 6}, ())
    flat = dataclasses.replace(wanted, strategy="full_shard", shard_group=None)
    set_, unset = {"parallelism.strategy": "full_shard"}, ("parallelism.shard_group",)
    assert changes(spec, flat) == (set_, unset)


def test_tensor_groups_of_all_ranks_are_a_shape(folder: Path) -> None:
    best = answer(write(folder, {"strategy": "full_shard", "tensor": 8}, model=LARGE))["advice"]
    assert best["best"]["setting"]["parallelism.cpu_offload"] is False
    assert "each of 8 ranks has its part of every matrix" in best["reason"]


@pytest.mark.parametrize(
    "options",
    [{"ddp": {"bucket_cap_mb": 25}}, {"fsdp": {"version": 2}}, {"fsdp": {"deferred_init": True}},
     {"wrap": {"by": "block"}}, {"activation_checkpointing_every": 1}],
)  # fmt: skip
@pytest.mark.parametrize(("model", "taken"), [(MODEL, {"ddp"}), (LARGE, {"shard_grad_op",
                                              "full_shard"})])  # fmt: skip
def test_an_option_with_its_default_value_excludes_nothing(
    folder: Path, options: Plan, model: Plan, taken: set[str]
) -> None:
    plain = load_job(write(folder, {"strategy": "auto"}, model=model), None, None, [])
    loaded = load_job(write(folder, {"strategy": "auto", **options}, model=model), None, None, [])
    assert loaded.resolved.chosen == plain.resolved.chosen
    code, text = invoke(write(folder, {"strategy": "auto", **options}, model=model))
    assert code == 0
    assert "strategy: auto takes it." in text
    compared = answer(folder / "job.yaml", "--compare", "strategy=ddp,full_shard")["compared"]
    assert not any(cell["problem"] for cell in compared)
    assert loaded.resolved.spec.parallelism.strategy in taken | {"shard_grad_op"}


def test_a_batch_that_needs_sums_with_each_micro_batch_has_them(folder: Path) -> None:
    """fsdp.version 1 takes no other in bf16 with accumulation."""
    job = write(folder, {"strategy": "auto", "fsdp": {"version": 1}},
                {"micro": 1, "accumulation": 2}, model=LARGE)  # fmt: skip
    parallelism = load_job(job, None, None, []).resolved.spec.parallelism
    assert parallelism.gradient_sync == "each"
    assert parallelism.fsdp.version == 1
