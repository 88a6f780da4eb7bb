"""Bytes that a rank holds at its peak, and what they are."""

from __future__ import annotations

from orchestrator.estimate.figures import Memory
from orchestrator.estimate.held import held
from orchestrator.estimate.outline import Outline
from orchestrator.estimate.setting import Setting


def memory(setting: Setting, outline: Outline, hardware_overhead_bytes: int = 0) -> Memory:
    """Return the peak of a step of the rank that has most (rank 0), from the second step on.

    Args:
        hardware_overhead_bytes: the device's context, and what the allocator cannot use.
    """
    state = held(setting, outline)
    offloads = setting.cpu_offload
    return Memory(
        parameters=0 if offloads else state.parameters,
        gradients=0 if offloads else state.gradients,
        optimizer=0 if offloads else state.optimizer,
        buffers=outline.buffer_bytes,
        overhead=hardware_overhead_bytes,
        host=sum(state) if offloads else 0,
    )
