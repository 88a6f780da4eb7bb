"""The card and the links of a job: from the profile, and from the tables of cards and links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.cards import Card, Link, card_of, links
from orchestrator.spec.hardware import HardwareFacts, LinkFacts

if TYPE_CHECKING:
    from orchestrator.profiles import ClusterProfile
    from orchestrator.spec import JobSpec

# Shares of the peak that training reaches in its matrix products and what lies between them:
# 36-46 % in bf16 on A100 by Korthikanti et al., "Reducing Activation Recomputation" (2022), table
# 5, and Chowdhery et al., "PaLM" (2022), table 3, of TPU v4.
UTILISATION: Mapping[str, float] = {"fp32": 0.6, "bf16": 0.4, "fp16": 0.4}
# A bare context with cuBLAS and NCCL; 0.5 to 1 GiB by card and library, seen with nvidia-smi.
CONTEXT_BYTES = 2**30
HOST_BANDWIDTH = 25e9  # of 31.5 GB/s of PCI Express 4.0 x16, in one direction


@dataclass(frozen=True)
class Hardware:
    """What time and fit are reckoned with; None where it is not known.

    Args:
        card: name in the table, or "" without one.
        memory_bytes: of one rank's device.
        peak: operations per second by format of the computation.
        utilisation: share of the peak that training reaches, by format.
        memory_bandwidth: bytes per second of the device's memory.
        inside, between: the links in a node and between nodes.
        overlap: share of the computation that communication can hide behind.
        context_bytes: of the device's memory, taken before the first tensor.
        unit_overhead_s: of the host, for each sharded unit and micro-batch.
        host_bandwidth: bytes per second between a device and the CPU's memory.
        price_per_gpu_hour: in the profile's currency.
        assumed: what was neither in the profile nor in a data sheet, in words.
    """

    card: str = ""
    memory_bytes: int | None = None
    peak: Mapping[str, float] = field(default_factory=dict)
    utilisation: Mapping[str, float] = field(default_factory=lambda: UTILISATION)
    memory_bandwidth: float | None = None
    inside: Link | None = None
    between: Link | None = None
    overlap: float = 1.0
    context_bytes: int = 0
    unit_overhead_s: float = 0.0
    host_bandwidth: float = HOST_BANDWIDTH
    price_per_gpu_hour: float | None = None
    assumed: tuple[str, ...] = ()


NOTHING = Card("", "", None, {}, None)


def hardware_of(spec: JobSpec, profile: ClusterProfile) -> Hardware:
    """Return what is known of the card and the links that a job gets under a profile."""
    facts: HardwareFacts = profile.hardware or HardwareFacts.model_validate({})
    gpus = spec.resources.gpus_per_node
    card = card_of(facts.card or spec.resources.gpu_type or "" if gpus else facts.card or "cpu")
    card = card or NOTHING
    share = facts.utilisation
    peaks = _speeds(card, 1 if gpus else spec.resources.cpus_per_rank)
    peaks.update({str(name): peak for name, peak in facts.peak.items()})
    shares = {name: share or usual for name, usual in UTILISATION.items()}
    return Hardware(
        card=card.name,
        memory_bytes=facts.gpu_memory or card.memory_bytes or _cpu_memory(spec),
        peak=peaks,
        utilisation=shares,
        memory_bandwidth=facts.memory_bandwidth or card.memory_bandwidth,
        inside=_link(facts.inside, card.link),
        between=_link(facts.between, "" if gpus else card.link),
        overlap=card.overlap if facts.overlap is None else facts.overlap,
        context_bytes=facts.context or (CONTEXT_BYTES if gpus else 0),
        unit_overhead_s=(
            card.unit_overhead_s if facts.unit_overhead is None else facts.unit_overhead
        ),
        price_per_gpu_hour=facts.price_per_gpu_hour,
    )


def _speeds(card: Card, cores: int) -> dict[str, float]:
    return {name: peak * cores for name, peak in card.peak.items() if name in UTILISATION}


def _cpu_memory(spec: JobSpec) -> int | None:
    """A rank's share of the memory that a job without GPUs asks for."""
    resources = spec.resources
    if resources.gpus_per_node or resources.memory is None:
        return None
    return resources.memory // resources.num_ranks_per_node


def _link(facts: LinkFacts | None, default: str) -> Link | None:
    named = links().get(facts.link or "" if facts else default)
    if facts is None or facts.bandwidth is None:
        if named is None or facts is None or facts.latency is None:
            return named
        return Link(named.name, named.bandwidth, facts.latency, named.source)
    latency = facts.latency if facts.latency is not None else named.latency_s if named else 0.0
    return Link(named.name if named else "", facts.bandwidth, latency, "the profile")
