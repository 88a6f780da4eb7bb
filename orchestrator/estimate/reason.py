"""Why a setting is advised, in words and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator.estimate.lines import crosses_nodes

if TYPE_CHECKING:
    from orchestrator.estimate.figures import Estimate
    from orchestrator.estimate.hardware import Hardware
    from orchestrator.estimate.setting import Setting


def gib(size_bytes: float) -> str:
    """Return a size of memory in words."""
    return f"{size_bytes / 2**30:.3g} GiB" if size_bytes >= 2**28 else f"{size_bytes / 2**20:.3g} MiB"


def gb(size_bytes: float) -> str:
    """Return bytes on a link in words, decimal as links are."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= size * 0.1:
            return f"{size_bytes / size:.3g} {unit}"
    return f"{size_bytes:.0f} B"


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


def _card(hardware: Hardware) -> str:
    from orchestrator.estimate.whole import FITS

    size = gib(hardware.memory_bytes or 0)
    return f"the card has {size}, of which {FITS:.0%} are counted on"


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
            f"A whole copy fits on each GPU ({size}; {_card(hardware)}), so nothing need be "
            "sharded: ddp sends least and waits least."
        )
    if setting.strategy == "hybrid_shard":
        return f"{_too_large(copy)}{_groups(best, found)} {size} a GPU."
    how = {
        "full_shard": f"parameters, gradients and optimizer state are spread over "
        f"{setting.num_shards} ranks",
        "shard_grad_op": f"gradients and optimizer state are spread over {setting.num_shards} "
        "ranks, and the parameters are gathered once a step",
    }.get(setting.strategy, f"the job says {setting.strategy}")
    return f"{_too_large(copy)}{how}: {size} a GPU."


def _too_large(copy: Estimate | None) -> str:
    if copy is None:
        return "Under tensor parallelism "
    if copy.fits is False:
        return f"One GPU cannot hold a whole copy ({gib(copy.memory.total)}), so "
    return f"A whole copy would fit ({gib(copy.memory.total)}) and be slower or not allowed; so "


def _groups(best: Estimate, found: Sequence[Estimate]) -> str:
    """What groups of hybrid_shard are good for, beside one group of all ranks."""
    setting = best.setting
    where = f"over {_num_nodes(setting)} nodes" if crosses_nodes(setting) else "inside a node"
    flat = next((e for e in found if e.setting.strategy == "full_shard"), None)
    words = f"groups of {setting.shard_group} ranks {where} share one"
    if flat is None or setting.num_nodes == 1:
        return f"{words}:"
    mine, other = best.traffic.node_bytes, flat.traffic.node_bytes
    return f"{words}, so that a node sends {gb(mine)} a step in place of full_shard's {gb(other)}:"


def _num_nodes(setting: Setting) -> int:
    return (setting.shard_group or 1) * setting.tensor // setting.ranks_per_node


def _extras(best: Estimate) -> Iterator[str]:
    setting = best.setting
    if setting.checkpointing != "none":
        yield f"Activations are recomputed ({setting.checkpointing}), or they would not fit as well."
    if setting.gradient_sync == "each" and setting.accumulation > 1:
        yield (
            "Gradients are summed with each micro-batch: kept until the last one, they would be "
            "there whole."
        )
    if setting.cpu_offload:
        yield "Without the CPU's memory for the state nothing fits; it is slow."


def _tie(best: Estimate, found: Sequence[Estimate]) -> Iterator[str]:
    """Whether something less simple would be faster, by too little."""
    paced = [e for e in found if e.pace is not None]
    if best.pace is None or not paced:
        yield "The speed of the card or of a link is not known, so the simplest rule holds: whole "\
            "copies if they fit, else groups inside a node, else all ranks."
        return
    fastest = min(paced, key=lambda e: e.pace.step_s if e.pace else 0.0)
    if fastest.pace and fastest.pace.step_s < best.pace.step_s and fastest is not best:
        yield (
            f"{_short(fastest.setting)} would take {seconds(fastest.pace.step_s)} a step in place "
            f"of {seconds(best.pace.step_s)}; within 2 % the simpler one is taken."
        )


def _short(setting: Setting) -> str:
    text = shape_words(setting)
    return text[0].upper() + text[1:]
