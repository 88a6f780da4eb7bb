"""size: a search's quick way to a setting's bytes is that of the whole model."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from test_estimate_traffic import setting

from orchestrator.estimate.gpt import gpt_outline
from orchestrator.estimate.hardware import Hardware
from orchestrator.estimate.held import held
from orchestrator.estimate.memory import floor, memory
from orchestrator.estimate.search import Question, _largest
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.size import size
from orchestrator.estimate.variants import batches
from orchestrator.estimate.whole import FITS
from orchestrator.spec.presets import ModelSizes

settings_ = st.builds(
    lambda shape, more, prefetch, reshard: replace(
        setting(**shape, **more),
        fsdp=setting().fsdp.model_copy(
            update={"prefetch_backward": prefetch, "reshard_after_forward": reshard}
        ),
    ),
    st.sampled_from(
        [
            {"strategy": "full_shard"},
            {"strategy": "shard_grad_op"},
            {"strategy": "hybrid_shard", "shard_group": 4},
            {"strategy": "ddp"},
        ]
    ),
    st.fixed_dictionaries(
        {
            "precision": st.sampled_from(["fp32", "bf16"]),
            "micro": st.integers(1, 9),
            "accumulation": st.integers(1, 3),
            "context": st.sampled_from([16, 1024]),
            "gradient_sync": st.sampled_from(["last", "each"]),
            "checkpointing": st.sampled_from(["none", "selective", "full"]),
            "checkpointing_every": st.integers(1, 3),
            "cpu_offload": st.booleans(),
        }
    ),
    st.integers(1, 3),
    st.sampled_from([None, True, False, 4]),
)


@given(settings_, st.integers(1, 60), st.sampled_from([8, 512]), st.booleans())
def test_a_few_units_give_the_bytes_of_all(
    case: Setting, layers: int, width: int, tied: bool
) -> None:
    sizes = ModelSizes(layers=layers, heads=2, width=width, context=1024)
    outline = gpt_outline(sizes, 999, tied, 0.1)
    whole = memory(case, outline, 7)
    assert size(case, outline, 7) == (whole.total, whole.host)
    state = held(case, outline)
    between = 0 if case.cpu_offload else state.parameters + state.optimizer
    assert between + floor(case, outline) <= whole.total - 7


@settings(max_examples=30)
@given(settings_, st.integers(1, 6), st.sampled_from([1, 12, 60]), st.integers(24, 32))
def test_the_largest_batch_is_that_of_a_search_through_all(
    case: Setting, layers: int, accumulation: int, power: int
) -> None:
    sizes = ModelSizes(layers=layers, heads=2, width=256, context=1024)
    outline = gpt_outline(sizes, 999, True, 0.1)
    case = replace(case, accumulation=accumulation)
    asked = Question(case, outline, Hardware(memory_bytes=2**power))
    each = batches(case, frozenset())
    expected = [one for one in each if memory(one, outline).total <= 2**power * FITS]
    assert list(_largest(asked, case))[:1] == expected[:1]
