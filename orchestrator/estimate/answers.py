"""A plan as plain data: for --json, and for plan.json in the run folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from orchestrator.estimate.lines import KEYS, Change

if TYPE_CHECKING:
    from orchestrator.estimate.advice import Advice
    from orchestrator.estimate.figures import Estimate
    from orchestrator.estimate.hardware import Hardware
    from orchestrator.estimate.setting import Setting

VERSION = 1


def plan_answer(one: Estimate, hardware: Hardware) -> dict[str, Any]:
    """Return the plan of one setting; null for what is not known. Bytes are of the fullest rank."""
    return {
        "version": VERSION,
        "setting": setting_answer(one.setting),
        "fits": one.fits,
        "memory": {
            "total_bytes": one.memory.total,
            "card_bytes": hardware.memory_bytes,
            "at": one.memory.at,
            "host_bytes": one.memory.host,
            "lines": one.memory.lines,
            "moments": dict(one.memory.moments),
        },
        "traffic": _traffic(one),
        "step_s": one.pace.step_s if one.pace else None,
        "tokens_per_s": one.pace.tokens_per_s if one.pace else None,
        "pace": asdict(one.pace) if one.pace else None,
        "left_out": list(one.left_out),
    }


def setting_answer(setting: Setting) -> dict[str, Any]:
    """Return what a comparison varies, by the job file's keys."""
    return {key: getattr(setting, name) for name, key in KEYS.items()}


def _traffic(one: Estimate) -> dict[str, Any]:
    return {
        "inside_bytes": one.traffic.sent_bytes("inside"),
        "between_bytes": one.traffic.sent_bytes("between"),
        "out_of_a_node_bytes": one.traffic.node_bytes,
        "transfers": [
            {**asdict(transfer), "sent_bytes": transfer.sent_bytes}
            for transfer in one.traffic.transfers
        ],
    }


def advice_answer(
    advice: Advice, change: Callable[[Setting], Change], hardware: Hardware
) -> dict[str, Any]:
    """Return the advice: for each setting in it its plan, and what to write into the job file and
    to take out of it.

    Args:
        change: between the job as it is written and a setting.
    """

    def whole(one: Estimate | None) -> dict[str, Any] | None:
        if one is None:
            return None
        found = change(one.setting)
        return {"set": found.set, "unset": list(found.unset), **plan_answer(one, hardware)}

    return {
        "reason": advice.reason,
        "best": whole(advice.best),
        "runner_up": whole(advice.runner_up),
        "remedies": [
            {"words": remedy.words, "plan": whole(remedy.estimate)} for remedy in advice.remedies
        ],
    }
