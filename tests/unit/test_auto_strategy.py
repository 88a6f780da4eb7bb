"""strategy: auto: resolved before anything is rendered, the same on every target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orchestrator.cli import orchestrate
from orchestrator.cli.common import load_job
from orchestrator.errors import FaultsError, UserError
from orchestrator.render import render

JOB = """\
name: auto
resources: {nodes: 2, gpus_per_node: 8, gpu_type: h100-sxm}
parallelism:
  strategy: auto
  precision: bf16
train:
  model: {layers: 32, heads: 32, width: 4096, context: 2048, vocab_size: 50304}
  data: {python_docs: true}
  batch: {micro: 2}
  steps: 100
"""
TARGETS = ["local", "slurm", "job", "jobset", "pytorchjob", "trainjob"]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(orchestrate, [str(word) for word in words])


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_gets_the_same_strategy_and_the_reason(job: Path, target: str) -> None:
    loaded = load_job(job, None, None, [], target=target)
    rendered = render(loaded.plan())
    parallelism = json.loads(rendered.files["trainer.json"])["parallelism"]
    assert parallelism["strategy"] == "hybrid_shard"
    (line,) = json.loads(rendered.files["launch.json"])["chosen"]
    assert line.startswith("parallelism.strategy: auto is hybrid_shard in groups of 8")
    assert "cannot hold a whole copy" in line
    if target == "slurm":
        assert f"# {line}\n" in rendered.files["job.sh"]
    elif target != "local":
        (text,) = [text for name, text in rendered.files.items() if name == f"{target}.yaml"]
        assert "orchestrate.dev/strategy" in text
    assert render(load_job(job, None, None, [], target=target).plan()) == rendered


def test_what_is_written_stays(job: Path) -> None:
    sets = ["parallelism.activation_checkpointing=full", "parallelism.shard_group=4"]
    spec = load_job(job, None, None, sets).resolved.spec
    assert spec.parallelism.strategy == "hybrid_shard"
    assert spec.parallelism.shard_group == 4
    assert spec.parallelism.activation_checkpointing == "full"
    assert spec.train.batch.micro == 2


def test_options_of_a_wrapper_that_is_not_taken_are_no_faults(job: Path) -> None:
    sets = ["parallelism.ddp.bucket_cap_mb=50", "parallelism.reductions=bf16"]
    assert load_job(job, None, None, sets).resolved.spec.parallelism.reductions == "bf16"
    small = [*sets, "train.model.layers=2"]
    parallelism = load_job(job, None, None, small).resolved.spec.parallelism
    assert (parallelism.strategy, parallelism.reductions) == ("ddp", "fp32")
    assert parallelism.ddp.bucket_cap_mb == 50


def test_explain_says_what_was_chosen_and_who_asked(job: Path) -> None:
    result = run("explain", "parallelism.strategy", job, "--json")
    words = json.loads(result.stdout)
    assert words["value"] == "hybrid_shard"
    assert words["from"] == f"strategy: auto, {job}:4:3"
    assert words["chosen"][0] in result.stderr


def test_without_a_card_it_is_a_fault_with_what_to_write(job: Path) -> None:
    job.write_text(JOB.replace(", gpu_type: h100-sxm", ""))
    with pytest.raises(FaultsError) as caught:
        load_job(job, None, None, [])
    (fault,) = caught.value.faults
    assert (fault.where(), fault.key) == (f"{job}:4:13", "parallelism.strategy")
    assert "resources.gpu_type" in fault.message


def test_where_nothing_fits_the_fault_says_what_would(job: Path) -> None:
    sets = ["resources.nodes=1", "resources.gpus_per_node=1", "parallelism.cpu_offload=false"]
    with pytest.raises(FaultsError) as caught:
        load_job(job, None, None, sets)
    (fault,) = caught.value.faults
    assert fault.key == "parallelism.strategy"
    assert "Nothing fits" in fault.message
    assert "resources.nodes: " in fault.fix


def test_a_model_of_ones_own_needs_what_inspect_has_written(job: Path) -> None:
    job.write_text(JOB.replace(
        "{layers: 32, heads: 32, width: 4096, context: 2048, vocab_size: 50304}",
        "{factory: mine:make, context: 128}",
    ))  # fmt: skip
    with pytest.raises(UserError, match="orchestrate-trainer inspect --factory mine:make"):
        load_job(job, None, None, [])


def test_a_range_of_nodes_keeps_all_its_sizes(job: Path) -> None:
    """Groups of two nodes would be as good with four nodes, and leave no attempt with three."""
    job.write_text(JOB.replace("nodes: 2", "nodes: {min: 2, max: 4}"))
    sets = ["train.batch.accumulation=3", "train.batch.micro=1"]
    assert load_job(job, None, None, sets).resolved.spec.node_sizes == (2, 3, 4)
    with pytest.raises(FaultsError, match=r"go with no strategy"):
        load_job(job, None, None, [*sets, "parallelism.shard_group=16"])


def test_each_element_of_a_sweep_has_a_strategy_of_its_own(job: Path) -> None:
    job.write_text(JOB + "sweep: {grid: {train.model.layers: [2, 32]}}\n")
    loaded = load_job(job, None, None, [], target="slurm")
    files = render(loaded.plan()).files
    found = [json.loads(files[f"trainer-{n:05}.json"])["parallelism"]["strategy"] for n in range(2)]
    assert found == ["ddp", "hybrid_shard"]
    assert [line.partition(":")[0] for line in json.loads(files["launch.json"])["chosen"]] == [
        "parallelism.strategy", "element 0", "element 1",
    ]  # fmt: skip
