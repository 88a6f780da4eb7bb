"""Why a setting is advised, in words and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator.estimate.lines import crosses_nodes

if TYPE_CHECKING:
    from orchestrator.estimate.figures import Estimate
    from orchestrator.estimate.hardware import Hardware
    from orchestrator.estimate.setting import Setting


CPU = "cpu"  # its name among the cards


def gib(size_bytes: float) -> str:
    """Return a size of memory in words."""
    if size_bytes < 2**28:
        return f"{size_bytes / 2**20:.3g} MiB"
    return f"{_digits(size_bytes / 2**30)} GiB"


def gb(size_bytes: float) -> str:
    """Return bytes on a link in words, decimal as links are."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= size * 0.1:
            return f"{_digits(size_bytes / size)} {unit}"
    return f"{size_bytes:.0f} B"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def seconds(time_s: float) -> str:
    """Return the time of a step in words."""
    return f"{time_s:.3g} s" if time_s >= 1 else f"{time_s * 1e3:.3g} ms"


def shape_words(setting: Setting) -> str:
    """Return what a comparison varies, in words."""
    words = [setting.strategy]
    if setting.shard_group is not None:
        words[0] += f" in groups of {setting.shard_group}"
    words.append(f"micro-batches of {setting.micro} x {setting.accumulation}")
    if setting.checkpointing != "none":
        words.append(f"{setting.checkpointing} recomputation")
    if setting.cpu_offload:
        words.append("state on the CPU")
    if setting.gradient_sync == "each" and setting.accumulation > 1:
        words.append("gradients summed with each micro-batch")
    return ", ".join(words)


def reason_without(least: Estimate | None, hardware: Hardware) -> str:
    """Return why nothing is advised."""
    if least is None:
        return "The options that the job file has written go with no strategy."
    return (
        f"Nothing fits: the least is {gib(least.memory.total)} a rank "
        f"({shape_words(least.setting)}), and {_card(hardware)}."
    )


def reason_unknown(hardware: Hardware) -> str:
    """Return what to write, so that something can be said to fit."""
    if hardware.card == CPU:
        return (
            "How much memory a node has is not known, so nothing can be said to fit: write "
            "resources.memory into the job file."
        )
    if hardware.unknown_card:
        return (
            f"{hardware.unknown_card} is not in the table of cards{_meant(hardware.unknown_card)}, "
            "so nothing can be said to fit: write one that is, or `hardware: {gpu_memory: 80GiB}` "
            "into the cluster profile."
        )
    return (
        "The card's memory is not known, so nothing can be said to fit: write resources.gpu_type "
        "into the job file, or `hardware: {card: NAME}` or `hardware: {gpu_memory: 80GiB}` into "
        "the cluster profile."
    )


def _meant(name: str) -> str:
    from orchestrator.cards import similar_cards

    similar = similar_cards(name)
    return f" (did you mean {' or '.join(similar)}?)" if similar else ""


def _card(hardware: Hardware) -> str:
    from orchestrator.estimate.whole import FITS

    size, what = gib(hardware.memory_bytes or 0), "it" if hardware.card == CPU else "the card"
    return f"{what} has {size}, of which {FITS:.0%} are counted on"


def _device(hardware: Hardware) -> str:
    """What holds a rank's memory."""
    return "rank" if hardware.card == CPU else "GPU"


def reason_for(
    best: Estimate, found: Sequence[Estimate], copy: Estimate | None, hardware: Hardware
) -> str:
    """Return why `best` is taken.

    Args:
        found: all that fit.
        copy: the least that a whole copy on each rank needs; None under tensor parallelism.
        hardware: of the cluster.
    """
    sentences = [_rule(best, found, copy, hardware), *_extras(best), *_tie(best, found)]
    return " ".join(sentences)


def _rule(
    best: Estimate, found: Sequence[Estimate], copy: Estimate | None, hardware: Hardware
) -> str:
    setting, size = best.setting, gib(best.memory.total)
    if setting.strategy == "ddp":
        return (
            f"A whole copy fits on each {_device(hardware)} ({size}; {_card(hardware)}), so "
            "nothing need be sharded: ddp is the simplest."
        )
    return f"{_not_ddp(best, found, copy, hardware)}{_spread(best, found)}: {size} each."


def _not_ddp(
    best: Estimate, found: Sequence[Estimate], copy: Estimate | None, hardware: Hardware
) -> str:
    """Why a whole copy on each rank is not the answer; the sentence goes on."""
    if copy is None:
        return "With tensor groups "
    size, device = gib(copy.memory.total), _device(hardware)
    if copy.fits is False:
        return f"One {device} cannot hold a whole copy ({size}; {_card(hardware)}), so "
    ddp = fastest_of(one for one in found if one.setting.strategy == "ddp")
    if ddp is not None and ddp.pace is not None and best.pace is not None:
        times = f"{seconds(ddp.pace.step_s)} a step in place of {seconds(best.pace.step_s)}"
        return (
            f"A whole copy would fit on each {device} ({shape_words(ddp.setting)}: "
            f"{gib(ddp.memory.total)}), but take {times}; here "
        )
    reason = "what the job file has written does not go with ddp"
    return f"A whole copy would fit on each {device} ({size}), but {reason}; here "


def fastest_of(found: Iterable[Estimate]) -> Estimate | None:
    """Return the fastest, None where there is none or no time is known."""
    paced = [(one.pace.step_s, number, one) for number, one in enumerate(found) if one.pace]
    return min(paced)[2] if paced else None


def _spread(best: Estimate, found: Sequence[Estimate]) -> str:
    setting = best.setting
    if setting.num_shards == 1 and setting.cpu_offload:
        return "parameters, gradients and optimizer state lie in the CPU's memory"
    if setting.num_shards == 1:
        return f"each of {setting.tensor} ranks has its part of every matrix, and all of the rest"
    ranks = f"{setting.num_shards} ranks"
    if setting.strategy == "hybrid_shard":
        return _groups(best, found)
    if setting.strategy == "shard_grad_op":
        return (
            f"gradients and optimizer state are spread over {ranks}, and parameters stay whole "
            "from the forward to the backward pass"
        )
    return f"parameters, gradients and optimizer state are spread over {ranks}"


def _groups(best: Estimate, found: Sequence[Estimate]) -> str:
    """What groups of hybrid_shard are good for, beside one group of all ranks."""
    setting = best.setting
    where = f"over {_num_nodes(setting)} nodes" if crosses_nodes(setting) else "inside a node"
    words = f"groups of {setting.shard_group} ranks {where} share one"
    flats = [one for one in found if one.setting.strategy == "full_shard"]
    flat = fastest_of(flats) or next(iter(flats), None)
    if flat is None or setting.num_nodes == 1:
        return words
    mine, other = best.traffic.node_bytes, flat.traffic.node_bytes
    if mine < other:
        sends = f"{gb(mine)} a step in place of full_shard's {gb(other)}"
        return f"{words}, so that a node sends {sends}"
    if best.pace is None or flat.pace is None:
        return words
    mine, other = best.pace.step_s, flat.pace.step_s
    rings = "rings of fewer ranks wait less for one another"
    return f"{words}: {rings}, {seconds(mine)} a step in place of full_shard's {seconds(other)}"


def _num_nodes(setting: Setting) -> int:
    return (setting.shard_group or 1) * setting.tensor // setting.ranks_per_node


def _extras(best: Estimate) -> Iterator[str]:
    setting = best.setting
    if setting.checkpointing != "none":
        yield (
            f"Activations are recomputed ({setting.checkpointing}): kept, they would not fit in "
            f"micro-batches of {setting.micro}."
        )
    if setting.gradient_sync == "each" and setting.accumulation > 1:
        yield (
            "Gradients are summed with each micro-batch: kept until the last one, they would be "
            "there whole."
        )
    if setting.cpu_offload:
        host = gib(best.memory.host)
        yield f"Without {host} of the CPU's memory for each rank nothing fits; it is slow."


def _tie(best: Estimate, found: Sequence[Estimate]) -> Iterator[str]:
    """Whether something less simple would be faster, by too little."""
    fastest = fastest_of(found)
    if fastest is None or fastest.pace is None or best.pace is None:
        yield (
            "The speed of the card or of a link is not known, so the plain rule holds: whole "
            "copies if they fit, else groups inside a node, else all ranks."
        )
    elif fastest.pace.step_s < best.pace.step_s:
        other, own = seconds(fastest.pace.step_s), seconds(best.pace.step_s)
        times = "as long" if other == own else f"{other} a step in place of {own}"
        yield (
            f"{_short(fastest.setting)} would take {times}: within 2 % the simpler one is taken."
        )


def _short(setting: Setting) -> str:
    text = shape_words(setting)
    return text[0].upper() + text[1:]
