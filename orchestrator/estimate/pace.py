"""How long a step takes: computation, the update, and the communication that nothing hides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.estimate.figures import Pace, Traffic, Transfer
from orchestrator.estimate.hardware import Hardware
from orchestrator.estimate.outline import Outline
from orchestrator.estimate.rings import seconds
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.traffic import recomputed_blocks
from orchestrator.estimate.traffic_shards import forward_passes, gathered_numel
from orchestrator.estimate.traffic_whole import syncs

# Of the three parts of a training step's operations one is the forward pass.
FORWARD = 1 / 3
# Of what `full` computes again, what `selective` does: all but matrix products and attention. It
# is few operations but a pass over the activations; Korthikanti et al. (2022) save nine tenths.
SELECTIVE = 0.1
# AdamW in fp32 reads a parameter, its gradient and two moments, and writes all but the gradient.
UPDATE_BYTES = 7 * 4
SECONDS_PER_HOUR = 3600
CPU = "cpu"  # its name among the cards


@dataclass(frozen=True)
class Work:
    """What a link does in one step.

    Args:
        span: inside, between, or copies (to and from the CPU's memory).
        phase: the pass whose computation can hide it: forward, backward, or none.
        passes: of the micro-batches of a step, those in which it happens.
        edge_s: of its time, what nothing can hide: the first gather, the last sum.
    """

    span: str
    phase: str
    passes: int
    total_s: float
    edge_s: float


def work_of(transfer: Transfer, hardware: Hardware) -> Work:
    """Return the time of one kind of collective."""
    total_s = seconds(transfer, hardware)
    edge_s = total_s * transfer.edge_bytes / max(1, transfer.payload_bytes)
    return Work(transfer.span, transfer.phase, transfer.passes, total_s, edge_s)


def pace(setting: Setting, outline: Outline, traffic: Traffic, hardware: Hardware) -> Pace | None:
    """Return the time of one step; None where the card's speed, the model's operations, or a link
    that is used is not known, and for dp, whose process feeds a number of GPUs of its own."""
    once_s = computation(setting, outline, hardware)
    unknown = [one for one in traffic.transfers if getattr(hardware, one.span) is None]
    if once_s is None or unknown or setting.strategy == "dp":
        return None
    compute_s = once_s * (1 + recomputation(setting, outline))
    forward_s = once_s * FORWARD
    works = [*(work_of(one, hardware) for one in traffic.transfers)]
    works += copies(setting, outline, hardware)
    exposed_s = exposed(setting, works, hardware, forward_s, compute_s - forward_s)
    spans = dict.fromkeys(("inside", "between", "copies"), 0.0)
    for work in works:
        spans[work.span] += work.total_s
    optimizer_s, host_s = update(setting, outline, hardware), host(setting, outline, hardware)
    step_s = compute_s + optimizer_s + host_s + exposed_s
    limits = {"compute": compute_s + optimizer_s, "host": host_s, **spans}
    total_s = step_s * setting.steps
    price = hardware.price_per_gpu_hour
    return Pace(
        compute_s=compute_s,
        inside_s=spans["inside"],
        between_s=spans["between"],
        exposed_s=exposed_s,
        step_s=step_s,
        tokens_per_s=setting.tokens_per_step / step_s,
        bound=max(limits, key=lambda name: limits[name]),
        total_s=total_s,
        optimizer_s=optimizer_s,
        host_s=host_s,
        copies_s=spans["copies"],
        cost=None if price is None else price * setting.num_ranks * total_s / SECONDS_PER_HOUR,
    )


def computation(setting: Setting, outline: Outline, hardware: Hardware) -> float | None:
    """Return the time of a step's forward and backward passes, with nothing computed twice."""
    peak = hardware.peak.get(setting.precision)
    if peak is None or outline.flops_per_token is None:
        return None
    tokens = setting.micro * setting.accumulation * setting.context
    speed = peak * hardware.utilisation[setting.precision]
    return outline.flops_per_token * tokens / setting.tensor / speed


def recomputation(setting: Setting, outline: Outline) -> float:
    """Return what the backward pass computes again, as a share of a step without it."""
    blocks = outline.layers or len(outline.units)
    if setting.checkpointing == "none" or not blocks:
        return 0.0
    share = FORWARD * (1 if setting.checkpointing == "full" else SELECTIVE)
    in_blocks = sum(unit.numel for unit in outline.units) / outline.numel
    return share * in_blocks * recomputed_blocks(setting, outline) / blocks


def exposed(
    setting: Setting,
    works: Sequence[Work],
    hardware: Hardware,
    forward_s: float,
    backward_s: float,
) -> float:
    """Return the time of communication that no computation hides, in one step.

    Args:
        forward_s, backward_s: of all micro-batches of a step.
    """
    total = sum(one.total_s for one in works if one.phase == "none")
    for phase, compute_s in (("forward", forward_s), ("backward", backward_s)):
        here = [one for one in works if one.phase == phase]
        window_s = compute_s * hardware.overlap / setting.accumulation
        total += sum(one.edge_s for one in here)
        total += _beyond(setting, here, hardware, window_s)
    return total


def _beyond(setting: Setting, works: Iterable[Work], hardware: Hardware, window_s: float) -> float:
    """What is longer than the computation beside it: with the micro-batches that sum gradients,
    and with the others."""
    each: dict[str, float] = defaultdict(float)
    with_sync: dict[str, float] = defaultdict(float)
    for one in works:
        hidden_s = (one.total_s - one.edge_s) / one.passes
        with_sync[one.span] += hidden_s
        if one.passes == setting.accumulation:
            each[one.span] += hidden_s
    # On a GPU each span has a stream of its own (torch's fully_shard sums between copies while it
    # scatters the next gradients); without overlap one call follows the other.
    joined = max if hardware.overlap else sum
    each_s, sync_s = (joined((0.0, *spans.values())) for spans in (each, with_sync))
    num_syncs = syncs(setting)
    others = setting.accumulation - num_syncs
    return num_syncs * max(0.0, sync_s - window_s) + others * max(0.0, each_s - window_s)


def copies(setting: Setting, outline: Outline, hardware: Hardware) -> Iterator[Work]:
    """Yield what offloading copies: a rank's part of each unit to the device for each gather, and
    of its gradients back for each sum, fp32 both (torch's _fsdp_param.py, all_gather_inputs, and
    _fsdp_collectives.py, foreach_reduce). On a CPU nothing is copied."""
    if not (setting.cpu_offload and setting.shards) or hardware.card == CPU:
        return
    bytes_each = 4 / setting.tensor / setting.num_shards
    passes, gathered = setting.accumulation, gathered_numel(setting, outline)
    forward = outline.numel * forward_passes(setting)
    trained = sum(p.numel for p in outline.parameters if p.trainable)
    rate = hardware.host_bandwidth / bytes_each
    yield Work("copies", "forward", forward_passes(setting), forward / rate, 0.0)
    yield Work("copies", "backward", passes, (gathered - forward) / rate, 0.0)
    yield Work("copies", "backward", syncs(setting), trained * syncs(setting) / rate, 0.0)


def update(setting: Setting, outline: Outline, hardware: Hardware) -> float:
    """Return the time of the optimizer's step, by what it reads and writes."""
    trained = sum(p.numel for p in outline.parameters if p.trainable)
    held = trained / setting.tensor / setting.num_shards
    away = setting.cpu_offload and hardware.card != CPU
    # The CPU's share of its own memory is taken to be as fast as the link to it.
    bandwidth = hardware.host_bandwidth if away else hardware.memory_bandwidth
    return 0.0 if bandwidth is None else held * UPDATE_BYTES / bandwidth


def host(setting: Setting, outline: Outline, hardware: Hardware) -> float:
    """Return what the host needs for the units of a sharded model."""
    if not setting.shards:
        return 0.0
    return (len(outline.units) + 1) * setting.accumulation * hardware.unit_overhead_s
