"""How long a step takes: computation, the update, and the communication that nothing hides."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.cards import Link
from orchestrator.estimate.figures import Pace, Traffic, Transfer
from orchestrator.estimate.hardware import Hardware
from orchestrator.estimate.outline import Outline
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.traffic import recomputed_blocks
from orchestrator.estimate.traffic_whole import syncs

# Of the three parts of a training step's operations one is the forward pass.
FORWARD = 1 / 3
# Of what `full` computes again, what `selective` does: all but matrix products and attention. It
# is few operations but a pass over the activations; Korthikanti et al. (2022) save nine tenths.
SELECTIVE = 0.1
# AdamW in fp32 reads a parameter, its gradient and two moments, and writes all but the gradient.
UPDATE_BYTES = 7 * 4
SECONDS_PER_HOUR = 3600


def pace(setting: Setting, outline: Outline, traffic: Traffic, hardware: Hardware) -> Pace | None:
    """Return the time of one step; None where the card's speed, the model's operations, or a link
    that is used is not known, and for dp, whose process feeds a number of GPUs of its own."""
    once_s = computation(setting, outline, hardware)
    unknown = [one for one in traffic.transfers if getattr(hardware, one.span) is None]
    if once_s is None or unknown or setting.strategy == "dp":
        return None
    compute_s = once_s * (1 + recomputation(setting, outline))
    forward_s = once_s * FORWARD
    exposed_s = exposed(setting, traffic, hardware, forward_s, compute_s - forward_s)
    inside_s, between_s = (span_s(traffic, hardware, span) for span in ("inside", "between"))
    optimizer_s, host_s = update(setting, outline, hardware), host(setting, outline, hardware)
    step_s = compute_s + optimizer_s + host_s + exposed_s
    limits = {"compute": compute_s + optimizer_s + host_s, "inside": inside_s, "between": between_s}
    total_s = step_s * setting.steps
    price = hardware.price_per_gpu_hour
    return Pace(
        compute_s=compute_s,
        inside_s=inside_s,
        between_s=between_s,
        exposed_s=exposed_s,
        step_s=step_s,
        tokens_per_s=setting.tokens_per_step / step_s,
        bound=max(limits, key=lambda name: limits[name]),
        total_s=total_s,
        optimizer_s=optimizer_s,
        host_s=host_s,
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


def span_s(traffic: Traffic, hardware: Hardware, span: str) -> float:
    """Return the time of all communication inside or between nodes."""
    return sum(seconds(one, hardware) for one in traffic.transfers if one.span == span)


def recomputation(setting: Setting, outline: Outline) -> float:
    """Return what the backward pass computes again, as a share of a step without it."""
    blocks = outline.layers or len(outline.units)
    if setting.checkpointing == "none" or not blocks:
        return 0.0
    share = FORWARD * (1 if setting.checkpointing == "full" else SELECTIVE)
    in_blocks = sum(unit.numel for unit in outline.units) / outline.numel
    return share * in_blocks * recomputed_blocks(setting, outline) / blocks


def seconds(transfer: Transfer, hardware: Hardware) -> float:
    """Return the time of all calls of a kind, one after another, by a ring.

    An all-reduce of B bytes over N ranks takes 2(N-1) messages and 2(N-1)/N * B of bandwidth, and
    the other kinds half of it: Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms"
    (2009). A ring over several nodes goes as fast as its slowest part.
    """
    link = hardware.inside if transfer.span == "inside" else hardware.between
    if link is None:
        return 0.0
    again = hardware.scatter_rounds if transfer.kind == "reduce_scatter" else 1
    messages = transfer.rounds * (transfer.group_size - 1) * transfer.count
    moved_s = transfer.sent_bytes / link.bandwidth
    if transfer.span == "between":
        moved_s = max(transfer.node_bytes / link.bandwidth, _inside_s(transfer, hardware.inside))
    return again * (messages * link.latency_s + moved_s)


def _inside_s(transfer: Transfer, link: Link | None) -> float:
    if link is None or transfer.ranks_per_node == 1:
        return 0.0
    return transfer.sent_bytes / link.bandwidth


def exposed(
    setting: Setting,
    traffic: Traffic,
    hardware: Hardware,
    forward_s: float,
    backward_s: float,
) -> float:
    """Return the time of communication that no computation hides, in one step.

    Args:
        forward_s, backward_s: of all micro-batches of a step.
    """
    parts = traffic.transfers
    total = sum(seconds(one, hardware) for one in parts if one.phase == "none")
    for phase, compute_s in (("forward", forward_s), ("backward", backward_s)):
        here = [one for one in parts if one.phase == phase]
        window_s = compute_s * hardware.overlap / setting.accumulation
        total += sum(edge_s(one, hardware) for one in here)
        total += _beyond(setting, here, hardware, window_s)
    return total


def edge_s(transfer: Transfer, hardware: Hardware) -> float:
    """Return the part of its time that nothing can hide: the first gather, the last sum."""
    return seconds(transfer, hardware) * transfer.edge_bytes / max(1, transfer.payload_bytes)


def _beyond(
    setting: Setting, transfers: Iterable[Transfer], hardware: Hardware, window_s: float
) -> float:
    """What is longer than the computation beside it: with the micro-batches that sum gradients,
    and with the others."""
    each = with_sync = 0.0
    for one in transfers:
        hidden = (seconds(one, hardware) - edge_s(one, hardware)) / one.passes
        if one.passes == setting.accumulation:
            each += hidden
        else:
            with_sync += hidden
    num_syncs = syncs(setting)
    others = setting.accumulation - num_syncs
    return num_syncs * max(0.0, each + with_sync - window_s) + others * max(0.0, each - window_s)


def update(setting: Setting, outline: Outline, hardware: Hardware) -> float:
    """Return the time of the optimizer's step, by what it reads and writes."""
    if hardware.memory_bandwidth is None:
        return 0.0
    trained = sum(p.numel for p in outline.parameters if p.trainable)
    held = trained / setting.tensor / setting.num_shards
    if setting.cpu_offload:
        # Gradients go to the CPU and parameters come back, fp32 each.
        return held * 8 / hardware.host_bandwidth + held * UPDATE_BYTES / hardware.host_bandwidth
    return held * UPDATE_BYTES / hardware.memory_bandwidth


def host(setting: Setting, outline: Outline, hardware: Hardware) -> float:
    """Return what the host needs for the units of a sharded model."""
    if not setting.shards:
        return 0.0
    return (len(outline.units) + 1) * setting.accumulation * hardware.unit_overhead_s
