"""The card and the links of a job: from the profile, and from the tables of cards and links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.cards import Card, Link, card_of, links, plain_name
from orchestrator.fabrics import preset
from orchestrator.spec.hardware import HardwareFacts, LinkFacts

if TYPE_CHECKING:
    from orchestrator.profiles import ClusterProfile
    from orchestrator.spec import JobSpec

# Shares of the peak that training reaches while it computes, where the profile does not say:
# assumptions. Chowdhery et al., "PaLM" (2022), table 3, has 21 to 46 % for whole runs in bf16,
# communication included; the plain units of fp32 are easier to keep busy than tensor cores.
UTILISATION: Mapping[str, float] = {"fp32": 0.6, "bf16": 0.4, "fp16": 0.4}
# Assumed of a GPU's context with the libraries for matrices and communication.
CONTEXT_BYTES = 2**30
# Assumed between a GPU and its host: four fifths of PCI Express 4.0 x16, in one direction.
HOST_BANDWIDTH = 25e9


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
        trees: whether an all-reduce over nodes may go by trees, as NCCL's does.
        scatter_rounds: how often a reduce-scatter goes round: once, but gloo makes an all-reduce
            of it.
        price_per_gpu_hour: in the profile's currency.
        assumed: what was neither in the profile nor in a data sheet, in words.
        unknown_card: the name of the card, where no table has it.
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
    scatter_rounds: int = 1
    trees: bool = True
    price_per_gpu_hour: float | None = None
    assumed: tuple[str, ...] = ()
    unknown_card: str = ""


NOTHING = Card("", "", None, {}, None)


def hardware_of(spec: JobSpec, profile: ClusterProfile) -> Hardware:
    """Return what is known of the card and the links that a job gets under a profile."""
    facts: HardwareFacts = profile.hardware or HardwareFacts.model_validate({})
    on_gpus = spec.resources.gpus_per_node > 0
    name = (facts.card or spec.resources.gpu_type) if on_gpus else "cpu"
    card = card_of(name) if name else None
    card = card or NOTHING
    peaks = _speeds(card, 1 if on_gpus else spec.resources.cpus_per_rank)
    peaks.update({str(format): peak for format, peak in facts.peak.items()})
    # Ranks without GPUs of this machine's simulated nodes; elsewhere the site tells its network.
    is_here = profile.target == "local" and not on_gpus
    between = card.link if is_here else _fabric_link(spec)
    return Hardware(
        card=card.name,
        memory_bytes=facts.gpu_memory or card.memory_bytes or _cpu_memory(spec),
        peak=peaks,
        utilisation={one: facts.utilisation or usual for one, usual in UTILISATION.items()},
        memory_bandwidth=facts.memory_bandwidth or card.memory_bandwidth,
        inside=_link(facts.inside, card.link),
        between=_link(facts.between, between),
        overlap=_first(facts.overlap, card.overlap),
        context_bytes=facts.context or (CONTEXT_BYTES if on_gpus else 0),
        unit_overhead_s=_first(facts.unit_overhead, card.unit_overhead_s),
        host_bandwidth=facts.host_bandwidth or HOST_BANDWIDTH,
        scatter_rounds=2 if _uses_gloo(spec) else 1,
        trees=not _uses_gloo(spec),
        price_per_gpu_hour=facts.price_per_gpu_hour,
        assumed=tuple(_assumed(facts, card, name or "")),
        unknown_card=name if name and card is NOTHING else "",
    )


def _assumed(facts: HardwareFacts, card: Card, name: str) -> Iterator[str]:
    if card is not NOTHING and plain_name(name) != card.name:
        yield f"the card {name} is taken for {card.name} (hardware.card)"
    if facts.utilisation is None:
        narrow, wide = UTILISATION["bf16"], UTILISATION["fp32"]
        shares = f"{narrow:.0%} of the peak in bf16 and fp16, {wide:.0%} in fp32"
        yield f"computation is reckoned with {shares} (hardware.utilisation)"
    if facts.gpu_memory is None and card.memory_bytes is not None:
        whose = "it is sold" if card.memory_is_sold else "its driver reports it"
        yield f"the card's memory is as {whose} (hardware.gpu_memory)"


def _uses_gloo(spec: JobSpec) -> bool:
    backend = spec.network.backend
    return backend == "gloo" or (backend == "auto" and not spec.resources.gpus_per_node)


def _first(given: float | None, usual: float) -> float:
    return usual if given is None else given


def _fabric_link(spec: JobSpec) -> str:
    """What the preset of the network says that a node has."""
    fabric = spec.network.fabric
    return (preset(fabric).link or "") if fabric else ""


def _speeds(card: Card, cores: int) -> dict[str, float]:
    return {name: peak * cores for name, peak in card.peak.items() if name in UTILISATION}


def _cpu_memory(spec: JobSpec) -> int | None:
    """A rank's share of the memory that a job without GPUs asks for."""
    resources = spec.resources
    if resources.gpus_per_node or resources.memory is None:
        return None
    return resources.memory // resources.num_ranks_per_node


def _link(facts: LinkFacts | None, usual: str) -> Link | None:
    """Return the link that the profile names, or the usual one, with the profile's numbers."""
    named = links().get((facts.link if facts else None) or usual)
    if facts is None or (facts.bandwidth is None and named is None):
        return named
    name, rate, latency_s = (
        (named.name, named.bandwidth, named.latency_s) if named else ("", 0.0, 0.0)
    )
    latency_s = _first(facts.latency, latency_s)
    return Link(name, facts.bandwidth or rate, latency_s, "the profile")
