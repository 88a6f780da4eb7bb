"""The plan of one setting: memory, traffic and pace together."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.estimate.figures import Estimate
from orchestrator.estimate.hardware import HOST_BANDWIDTH, Hardware
from orchestrator.estimate.memory import memory
from orchestrator.estimate.outline import Outline
from orchestrator.estimate.pace import CPU, pace
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.traffic import traffic

FITS = 0.95  # of the card's memory: what fragments take is not known before


def estimate(setting: Setting, outline: Outline, hardware: Hardware) -> Estimate:
    """Return what a setting needs, moves and takes."""
    held = memory(setting, outline, hardware.context_bytes)
    moved = traffic(setting, outline)
    speed = pace(setting, outline, moved, hardware)
    size = hardware.memory_bytes
    return Estimate(
        setting=setting,
        memory=held,
        traffic=moved,
        pace=speed,
        fits=None if size is None else held.total <= size * FITS,
        left_out=(
            *outline.left_out,
            *_not_in_memory(hardware),
            *_not_in_traffic(setting),
            *(_not_in_time(setting, hardware) if speed is not None else ()),
            *hardware.assumed,
        ),
    )


def _not_in_memory(hardware: Hardware) -> Iterator[str]:
    yield "memory: what the allocator cannot use between its blocks"
    if hardware.context_bytes:
        size = hardware.context_bytes / 2**30
        yield f"memory: what context and libraries take beyond {size:.1f} GiB (hardware.context)"


def _not_in_traffic(setting: Setting) -> Iterator[str]:
    if setting.strategy == "dp":
        yield "traffic and time: copies of strategy dp between the GPUs of its one process"
    if setting.strategy == "ddp" and setting.ddp.hook == "powersgd":
        yield "traffic: PowerSGD's first steps, which send whole gradients"


def _not_in_time(setting: Setting, hardware: Hardware) -> Iterator[str]:
    yield "time: data that is not there in time, evaluations, checkpoints and restarts"
    if setting.cpu_offload and hardware.host_bandwidth == HOST_BANDWIDTH and hardware.card != CPU:
        rate = f"{HOST_BANDWIDTH / 1e9:.0f} GB/s"
        yield f"time: copies to and from the CPU's memory go at {rate} (hardware.host_bandwidth)"
