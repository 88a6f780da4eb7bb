"""What fits: on the CPU, with each number of nodes, and what is said where nothing is known."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from orchestrator.cli import orchestrate
from orchestrator.cli.common import load_job
from orchestrator.errors import FaultsError, UserError
from orchestrator.estimate.advice import advise
from orchestrator.estimate.auto import question_of
from orchestrator.estimate.grid import parse_axes
from orchestrator.estimate.memory import memory
from orchestrator.estimate.setting import Setting

JOB = """\
name: fit
resources: {nodes: 2, gpus_per_node: 8}
parallelism: {strategy: full_shard, precision: bf16}
train:
  model: {layers: 32, heads: 32, width: 4096, context: 2048, vocab_size: 32000}
  data: {python_docs: true}
  batch: {micro: 2}
  steps: 100
"""
CLUSTERS = """\
default: known
clusters:
  known: {target: slurm, hardware: {card: h100-sxm, between: {bandwidth: 10GB/s, latency: 5us}}}
  unknown: {target: slurm}
"""
ON_CPU = ("resources.gpus_per_node=0", "resources.ranks_per_node=2", "train.model.layers=4")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path, clusters = tmp_path / "job.yaml", tmp_path / "sites.yaml"
    path.write_text(JOB)
    clusters.write_text(CLUSTERS)
    monkeypatch.setenv("ORCHESTRATE_CLUSTERS", str(clusters))
    return path


def run(job: Path, *words: str, sets: tuple[str, ...] = ()) -> Result:
    options = [word for one in sets for word in ("--set", one)]
    result = CliRunner().invoke(orchestrate, ["plan", str(job), *words, *options])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def answer(job: Path, *words: str, sets: tuple[str, ...] = ()) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(job, "--json", *words, sets=sets).stdout)
    return found


@pytest.mark.parametrize("memory_gib", [8, 16, 64])
def test_without_gpus_nothing_is_offloaded_to_where_it_is(job: Path, memory_gib: int) -> None:
    """A CPU's memory holds what is on the "device" and what is offloaded; the profile's card,
    which the job does not use, has no part in it."""
    sets = (*ON_CPU, f"resources.memory={memory_gib}GiB")
    found = answer(job, sets=sets)
    assert found["memory"]["card_bytes"] == memory_gib * 2**30 // 2
    plans = [found["advice"]["best"], *(one["plan"] for one in found["advice"]["remedies"])]
    assert not any(plan["memory"]["host_bytes"] for plan in plans if plan)
    offloaded = answer(job, sets=(*sets, "parallelism.cpu_offload=true"))
    total = offloaded["memory"]["total_bytes"] + offloaded["memory"]["host_bytes"]
    assert offloaded["fits"] is (total <= memory_gib * 2**30 / 2 * 0.95)
    text = run(job, sets=(*sets, "parallelism.cpu_offload=true")).stdout
    said = f"does NOT fit: needs {total / 2**30:.3g} GiB with what is offloaded"
    assert (said in text) is (offloaded["fits"] is False)


def test_without_gpus_the_remedy_is_memory_not_a_card(job: Path) -> None:
    remedies = answer(job, sets=(*ON_CPU, "resources.memory=1GiB"))["advice"]["remedies"]
    words = [one["words"] for one in remedies]
    assert not any("card" in word for word in words)
    (size,) = [word for word in words if word.startswith("resources.memory: ")]
    enough = f"resources.memory={size.rpartition(' ')[2]}"
    assert answer(job, sets=(*ON_CPU, enough))["advice"]["best"] is not None


def test_what_is_offloaded_must_fit_on_the_cpu(job: Path) -> None:
    sets = ("parallelism.cpu_offload=true", "resources.memory=32GiB")
    result = run(job, "--check", sets=sets)
    assert result.exit_code == 1
    assert "does NOT fit: needs 6.13 GiB on the CPU for each rank, and there are 4 GiB" in (
        result.stdout
    )
    cells = answer(job, "--compare", "offload=true,false", sets=sets)["compared"]
    assert [(one["values"]["offload"], one["plan"]["fits"]) for one in cells] == [
        (False, True),
        (True, False),
    ]
    assert answer(job, sets=(sets[0], "resources.memory=64GiB"))["fits"] is True


def test_a_range_of_nodes_must_fit_with_the_fewest(job: Path) -> None:
    sets = ("resources.nodes={min: 1, max: 8}", "resources.gpus_per_node=2")
    result = run(job, "--check", sets=sets)
    assert result.exit_code == 1
    assert "GiB with 1 node (95% are counted on)" in result.stdout
    cells = answer(job, "--compare", "nodes=1,8", sets=sets)["compared"]
    assert all(one["plan"]["fits"] for one in cells), "each number by itself"


def test_a_shorter_context_has_an_outline_of_its_own(job: Path) -> None:
    sets = ("train.model.context=131072", "resources.nodes=1", "resources.gpus_per_node=4")
    remedies = answer(job, sets=sets)["advice"]["remedies"]
    (found,) = [one["plan"] for one in remedies if one["words"].startswith("context ")]
    same = (f"{key}={value}" for key, value in found["set"].items())
    again = answer(job, sets=(*sets, *same))
    assert (again["memory"], again["step_s"]) == (found["memory"], found["step_s"])


@pytest.mark.parametrize(("micro", "accumulation"), [(1, 1), (1, 6), (3, 5), (4, 4)])
def test_more_nodes_keep_the_global_batch_or_say_so(
    job: Path, micro: int, accumulation: int
) -> None:
    sets = ["resources.nodes=1", "resources.gpus_per_node=1"]
    sets += [f"train.batch.micro={micro}", f"train.batch.accumulation={accumulation}"]
    loaded = load_job(job, None, None, sets)
    asked = question_of(loaded.resolved.spec, loaded.profile, job, frozenset({"cpu_offload"}))
    (found,) = [one for one in advise(asked).remedies if one.words.startswith("resources.nodes")]
    assert found.estimate is not None
    times = found.estimate.setting.tokens_per_step / asked.setting.tokens_per_step
    assert (f"with {times:.3g} times the global batch" in found.words) is (times != 1)
    assert times >= 1 or "times" in found.words


def test_dp_splits_its_batch_and_ddp_takes_the_same_gpus(job: Path) -> None:
    sets = ("parallelism.strategy=dp", "resources.nodes=1", "resources.ranks_per_node=1",
            "train.model.layers=4", "train.batch.micro=16")  # fmt: skip
    spec = load_job(job, None, None, list(sets)).resolved.spec
    loaded = load_job(job, None, None, list(sets))
    outline = question_of(spec, loaded.profile, job, frozenset()).outline
    one = dataclasses.replace(Setting.of(spec), micro=2, replicas=1)
    assert memory(Setting.of(spec), outline) == memory(one, outline)
    found = answer(job, sets=sets)["advice"]
    assert found["best"]["unset"] == ["resources.ranks_per_node"]
    assert found["best"]["set"]["train.batch.micro"] == 2
    text = run(job, sets=sets).stdout
    assert "is not known without the copies of dp between its GPUs" in text
    assert "without ." not in text


@pytest.mark.parametrize(
    ("name", "words"),
    [("t4", "t4 is not in the table of cards,"), ("gh200", "gh200 is not"),
     ("h100-80gb", "did you mean h100-pcie or h100-sxm or h100-nvl?"),
     ("v100-sxm2", "v100-32gb or v100-16gb?"), ("mi300x-oam", "did you mean mi300x?")],
)  # fmt: skip
def test_a_card_of_no_table_is_named_and_checks_nothing(job: Path, name: str, words: str) -> None:
    sets = (f"resources.gpu_type={name}",)
    result = run(job, "--cluster", "unknown", "--check", sets=sets)
    assert result.exit_code == 1
    assert "--check: nothing was checked. " in result.stderr
    assert words in result.stderr
    assert "hardware: {gpu_memory: 80GiB}" in result.stdout
    assert "write resources.gpu_type" not in result.stdout.partition("ADVICE")[2]


def test_a_larger_card_is_one_of_the_same_maker(job: Path) -> None:
    sets = ["resources.nodes=1", "resources.gpus_per_node=1"]
    loaded = load_job(job, None, None, sets)
    asked = question_of(loaded.resolved.spec, loaded.profile, job, frozenset({"cpu_offload"}))
    for card, words in (("h100-sxm", "such as h200"), ("mi250x", "such as mi300x")):
        hardware = dataclasses.replace(asked.hardware, card=card, memory_bytes=64 * 2**30)
        (*_, last) = advise(dataclasses.replace(asked, hardware=hardware)).remedies
        assert words in last.words


def test_a_whole_copy_that_fits_and_its_time_are_of_one_setting(job: Path) -> None:
    sets = ("train.model.layers=6", "train.batch.micro=8")
    found = answer(job, sets=sets)["advice"]
    cell = answer(job, "--compare", "strategy=ddp", sets=sets)["compared"][0]["plan"]
    assert (
        f"(ddp, micro-batches of 8 x 1: {cell['memory']['total_bytes'] / 2**30:.3g} GiB)"
        in (found["reason"])
    )


def test_the_element_of_a_sweep_that_does_not_fit_is_named(job: Path) -> None:
    job.write_text(JOB + "sweep: {grid: {train.batch.micro: [1, 2, 512]}}\n")
    sets = ["parallelism.strategy=auto", "parallelism.activation_checkpointing=none"]
    with pytest.raises(FaultsError, match="element 2 of the sweep: auto: Nothing fits"):
        load_job(job, None, None, sets)


def test_a_size_of_groups_is_for_hybrid_shard(job: Path) -> None:
    axes = "strategy=full_shard,hybrid_shard;group=2,4,8"
    rows = [line.split()[:2] for line in run(job, "--compare", axes).stdout.splitlines()[1:]]
    assert sorted(rows) == [["full_shard", "-"], *(["hybrid_shard", n] for n in "248")]
    with pytest.raises(UserError, match="group is for hybrid_shard: add strategy=hybrid_shard"):
        CliRunner().invoke(
            orchestrate, ["plan", str(job), "--compare", "group=2,4"], catch_exceptions=False
        )


@pytest.mark.parametrize("text", ["", "nodes=1;micro=2;nodes=2"])
def test_axes_that_say_nothing_or_two_things_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^--compare: .*(has no =|there twice)"):
        parse_axes(text)


def test_values_that_are_there_twice_are_compared_once() -> None:
    assert parse_axes("nodes=1,2,1") == {"nodes": [1, 2]}
