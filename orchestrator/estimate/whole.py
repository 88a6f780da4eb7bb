"""The plan of one setting: memory, traffic and pace together."""

from __future__ import annotations

from orchestrator.estimate.figures import Estimate
from orchestrator.estimate.hardware import Hardware
from orchestrator.estimate.memory import memory
from orchestrator.estimate.outline import Outline
from orchestrator.estimate.pace import pace
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.traffic import traffic

FITS = 0.95  # of the card's memory: what fragments take is not known before


def estimate(setting: Setting, outline: Outline, hardware: Hardware) -> Estimate:
    """Return what a setting needs, moves and takes."""
    held = memory(setting, outline, hardware.context_bytes)
    moved = traffic(setting, outline)
    size = hardware.memory_bytes
    return Estimate(
        setting=setting,
        memory=held,
        traffic=moved,
        pace=pace(setting, outline, moved, hardware),
        fits=None if size is None else held.total <= size * FITS,
        left_out=(*outline.left_out, *hardware.assumed),
    )
