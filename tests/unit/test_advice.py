"""What is advised, and its reason."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.cards import Link
from orchestrator.estimate.advice import Advice, advise
from orchestrator.estimate.gpt import gpt_outline
from orchestrator.estimate.hardware import Hardware
from orchestrator.estimate.lines import changes, crosses_nodes, left_open, spec_with
from orchestrator.estimate.reason import gb, gib, reason_for, seconds
from orchestrator.estimate.search import TIE_SHARE, Question
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.variants import batches, complexity, shapes
from orchestrator.estimate.whole import FITS, estimate
from orchestrator.source import parse_document
from orchestrator.spec import JobSpec, resolve_job
from orchestrator.spec.job import job_problems
from orchestrator.spec.presets import ModelSizes
from orchestrator.spec.strategies import parallelism_problems

GB = 10**9
NVLINK = Link("nvlink", 450e9, 3e-6, "test")
# 7 billion parameters, or 100 times less.
LARGE = ModelSizes(layers=32, heads=32, width=4096, context=2048)
SMALL = ModelSizes(layers=8, heads=8, width=768, context=1024)


def job(nodes: int, gpus: int, sizes: ModelSizes, more: str = "", micro: int = 8) -> JobSpec:
    text = f"""\
name: advice
resources: {{nodes: {nodes}, gpus_per_node: {gpus}}}
parallelism: {{strategy: auto, precision: bf16{more}}}
train:
  model: {{layers: {sizes.layers}, heads: {sizes.heads}, width: {sizes.width},
           context: {sizes.context}, vocab_size: 50304}}
  data: {{python_docs: true}}
  batch: {{micro: {micro}, accumulation: 2}}
  steps: 100
"""
    return resolve_job(parse_document(text.encode(), "job.yaml")).spec


def hardware(memory_gb: float, network: float = 50e9, latency: float = 5e-6) -> Hardware:
    return Hardware(
        card="test",
        memory_bytes=round(memory_gb * GB),
        peak={"fp32": 60e12, "bf16": 990e12},
        memory_bandwidth=3.3e12,
        inside=NVLINK,
        unit_overhead_s=2e-4,
        between=Link("network", network, latency, "test"),
    )


def question(spec: JobSpec, card: Hardware, *fixed: str) -> Question:
    sizes = spec.train.model.sizes
    assert sizes is not None
    open_spec = left_open(spec)
    return Question(
        Setting.of(spec),
        gpt_outline(sizes, 50304, True, 0.0),
        card,
        frozenset({"num_nodes", "context", *fixed}),
        lambda one: not any(parallelism_problems(spec_with(open_spec, one))),
        spec.node_sizes,
    )


def advice(*arguments: Any, fixed: tuple[str, ...] = (), **options: Any) -> Advice:
    return advise(question(job(*arguments), hardware(**options), *fixed))


def best(found: Advice) -> Setting:
    assert found.best is not None, found.reason
    assert found.best.fits
    return found.best.setting


def test_what_fits_on_one_gpu_is_not_sharded() -> None:
    found = advice(1, 8, SMALL, memory_gb=80)
    assert best(found).strategy == "ddp"
    assert "whole copy fits on each GPU" in found.reason
    assert found.runner_up is not None
    assert found.runner_up.setting.strategy != "ddp"


def test_what_does_not_fit_on_one_gpu_is_sharded() -> None:
    found = advice(1, 8, LARGE, memory_gb=80)
    assert best(found).strategy in ("full_shard", "shard_grad_op")
    assert "One GPU cannot hold a whole copy" in found.reason
    assert "8 ranks" in found.reason


def test_a_large_model_on_several_nodes_is_gathered_inside_a_node() -> None:
    found = advice(2, 8, LARGE, "", 2, memory_gb=80, network=10e9)
    assert (best(found).strategy, best(found).shard_group) == ("hybrid_shard", 8)
    assert "groups of 8 ranks inside a node" in found.reason
    assert "in place of full_shard's" in found.reason


@pytest.mark.case("T32")
def test_a_group_over_several_nodes_is_proposed_where_a_node_is_too_small() -> None:
    """A node of 2 GPUs cannot hold a copy, and one group of all 128 ranks is slower."""
    spec = job(64, 2, LARGE, "", 1)
    asked = question(spec, hardware(48, network=100e9, latency=100e-6))
    found = advise(asked)
    setting = best(found)
    group = setting.shard_group
    assert setting.strategy == "hybrid_shard"
    assert group is not None
    assert 2 < group < 128
    assert crosses_nodes(setting)
    assert f"groups of {group} ranks over {group // 2} nodes" in found.reason
    assert not list(job_problems(spec_with(spec, setting))), "the job file may say so"
    flat = dataclasses.replace(setting, strategy="full_shard", shard_group=None)
    assert asked.fits(flat)
    assert not asked.fits(dataclasses.replace(setting, shard_group=2))
    assert changes(spec_with(spec, flat), setting).set == {
        "parallelism.strategy": "hybrid_shard",
        "parallelism.shard_group": group,
        "parallelism.fsdp.across_nodes": True,
    }


@pytest.mark.parametrize(
    ("network", "micro", "strategy"),
    [
        # The network hides: the simplest that fits, over all ranks.
        (400e9, 4, "shard_grad_op"),
        (50e9, 4, "shard_grad_op"),
        # One micro-batch: groups would send 7 P a node (P parameters) in place of 6 P.
        (10e9, 1, "shard_grad_op"),
        # Many: gathers go over the network with each of them, sums once.
        (10e9, 32, "hybrid_shard"),
    ],
)
def test_groups_in_a_node_are_for_a_network_that_a_step_waits_for(
    network: float, micro: int, strategy: str
) -> None:
    """The sixth line of the choice in ten lines: 6.6 B parameters on 8 x 8."""
    found = advice(8, 8, LARGE, "", micro, memory_gb=85.5, network=network, latency=14e-6)
    assert best(found).strategy == strategy
    assert best(found).shard_group == (8 if strategy == "hybrid_shard" else None)


def test_two_times_that_read_alike_are_not_told_apart() -> None:
    found = advice(1, 8, SMALL, memory_gb=80).best
    assert found is not None
    assert found.pace is not None
    for share, words in ((0.9999, "would take as long: within"), (0.99, " a step in place of ")):
        step_s = found.pace.step_s * share
        other = dataclasses.replace(found, pace=dataclasses.replace(found.pace, step_s=step_s))
        assert words in reason_for(found, [found, other], found, hardware(80))


def test_what_is_written_stays() -> None:
    spec = job(2, 8, LARGE, ", shard_group: 4, activation_checkpointing: full")
    asked = question(spec, hardware(80), "shard_group", "checkpointing", "micro", "accumulation")
    asked = dataclasses.replace(asked, setting=dataclasses.replace(asked.setting, shard_group=4))
    setting = best(advise(asked))
    assert (setting.strategy, setting.shard_group) == ("hybrid_shard", 4)
    assert (setting.checkpointing, setting.micro, setting.accumulation) == ("full", 8, 2)


def test_nothing_that_fits_is_slower_than_the_tie_allows() -> None:
    asked = question(job(2, 8, LARGE), hardware(80))
    found = advise(asked)
    assert found.best is not None
    assert found.best.pace is not None
    for shape in shapes(asked.setting, asked.fixed):
        for one in filter(asked.allowed, batches(shape, asked.fixed)):
            other = estimate(one, asked.outline, asked.hardware)
            if other.fits and other.pace:
                assert found.best.pace.step_s <= other.pace.step_s * (1 + TIE_SHARE) + 1e-9


def test_where_nothing_fits_each_remedy_does() -> None:
    asked = question(job(1, 1, LARGE), hardware(20), "cpu_offload")
    found = advise(asked)
    assert found.best is None
    assert "Nothing fits" in found.reason
    words = [remedy.words for remedy in found.remedies]
    assert any("resources.nodes: " in word for word in words)
    assert any("without parallelism.cpu_offload: full_shard" in word for word in words)
    assert any("a card with" in word for word in words)
    assert all(one.estimate.fits for one in found.remedies if one.estimate)


def test_without_the_cards_memory_it_says_what_to_write() -> None:
    asked = question(job(1, 1, SMALL), dataclasses.replace(hardware(1), memory_bytes=None))
    found = advise(asked)
    assert found.best is None
    assert "resources.gpu_type" in found.reason


def test_without_speeds_the_plain_rule_holds() -> None:
    bare = Hardware(memory_bytes=80 * GB)
    small = advise(question(job(2, 8, SMALL), bare))
    large = advise(question(job(2, 8, LARGE), bare))
    assert best(small).strategy == "ddp"
    assert (best(large).strategy, best(large).shard_group) == ("hybrid_shard", 8)
    assert "speed of the card or of a link is not known" in large.reason


@pytest.mark.case("T02")
def test_summing_with_each_micro_batch_is_offered_where_whole_gradients_do_not_fit() -> None:
    """The same job on a card that has room for all but the gradients of all ranks."""
    spec = job(1, 8, LARGE)
    kept = dataclasses.replace(Setting.of(spec), strategy="full_shard", micro=1, accumulation=16)
    each = dataclasses.replace(kept, gradient_sync="each")
    asked = question(spec, hardware(80), "micro", "accumulation", "checkpointing")
    sizes = [asked.size_bytes(one) for one in (each, kept)]
    assert sizes[1] - sizes[0] > 0.9 * 4 * asked.outline.numel * 7 / 8
    between = sum(sizes) / 2 / FITS / GB
    asked = dataclasses.replace(asked, setting=kept, hardware=hardware(between))
    found = advise(asked)
    assert best(found).gradient_sync == "each"
    assert "Gradients are summed with each micro-batch" in found.reason


def test_each_unit_of_ones_own_model_counts() -> None:
    """Units of equal parameters that leave different activations."""
    asked = question(job(1, 1, SMALL), hardware(80))

    def seen(size: int) -> dict[str, int]:
        return dict.fromkeys(("fp32/none", "bf16/none", "autocast/none"), size * GB)

    root, *units = [
        dataclasses.replace(unit, activation_bytes=seen(number))
        for number, unit in enumerate((asked.outline.root, *asked.outline.units))
    ]
    outline = dataclasses.replace(
        asked.outline, units=tuple(units), root=root, layers=0, working_bytes=seen(0)
    )
    ddp = dataclasses.replace(asked.setting, strategy="ddp", micro=1)
    lines = estimate(ddp, outline, asked.hardware).memory.lines
    assert lines["activations"] == sum(range(9)) * GB


def test_a_range_of_nodes_fits_with_the_fewest() -> None:
    most = question(job(4, 8, LARGE), hardware(24))
    each = dataclasses.replace(most, node_sizes=(1, 2, 4))
    assert not each.fits(best(advise(most)))
    assert each.fits(best(advise(each)))


def test_the_same_question_has_the_same_answer() -> None:
    assert advice(2, 4, SMALL, memory_gb=9) == advice(2, 4, SMALL, memory_gb=9)


@settings(max_examples=10)
@given(nodes=st.sampled_from([1, 2, 3]), gpus=st.sampled_from([1, 2, 6]), micro=st.integers(1, 12))
def test_each_variant_is_a_setting_of_its_own_job(nodes: int, gpus: int, micro: int) -> None:
    """With the same global batch, and in the job file's terms the same as in the planner's."""
    spec = job(nodes, gpus, SMALL)
    setting = dataclasses.replace(Setting.of(spec), micro=micro)
    for shape in shapes(setting, frozenset()):
        for one in batches(shape, frozenset()):
            assert one.tokens_per_step == setting.tokens_per_step
            written = spec_with(spec, one)
            if not any(job_problems(written)):
                again = dataclasses.replace(
                    Setting.of(written), ddp=one.ddp, fsdp=one.fsdp, wrap=one.wrap
                )
                assert again == one


def test_the_simpler_of_two_is_the_one_with_less_to_understand() -> None:
    spec = job(2, 2, SMALL)
    ddp, *others = sorted(
        shapes(Setting.of(spec), frozenset()), key=lambda one: complexity(one, Setting.of(spec))
    )
    assert (ddp.strategy, ddp.checkpointing) == ("ddp", "none")
    assert [one.strategy for one in others][-1] == "hybrid_shard"


def test_offloading_needs_room_on_the_cpu_too() -> None:
    asked = question(job(1, 2, LARGE), hardware(30))
    setting = best(advise(asked))
    assert setting.cpu_offload
    assert advise(dataclasses.replace(asked, host_bytes=20 * GB)).best is None


@pytest.mark.parametrize(
    ("words", "text"),
    [(gib(3 * 2**20), "3 MiB"), (gib(1.5 * 2**30), "1.5 GiB"), (gib(1440 * 2**30), "1,440 GiB"),
     (gb(8), "8 B"), (gb(723_000), "0.723 MB"), (gb(1.29e12), "1,290 GB"),
     (seconds(0.0125), "12.5 ms"), (seconds(1.871), "1.87 s")],
)  # fmt: skip
def test_figures_in_words(words: str, text: str) -> None:
    assert words == text
