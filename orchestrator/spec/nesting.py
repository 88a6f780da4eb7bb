"""How the time limits of the phases nest: what of them cannot hold together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.spec.base import KeyPath, Problem
from orchestrator.spec.timeouts import HANG_REPORT_S, LEAVE_S
from orchestrator.units import format_duration

if TYPE_CHECKING:
    from orchestrator.spec.job import JobSpec

TIME_LIMIT: KeyPath = ("resources", "time_limit")
# Phases of an attempt, each of which ends before the attempt's own limit, or never by its own.
PHASES = ("start", "rendezvous", "load", "first_step", "step", "evaluation", "checkpoint")


def nesting_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong between time limits, with both of them, paths from the root."""
    yield from _stop_problems(spec)
    yield from _grace_problems(spec)
    yield from _phase_problems(spec)
    yield from _step_problems(spec)


def _stop_problems(spec: JobSpec) -> Iterator[Problem]:
    """A stop begins so long before the time limit that it can end before it."""
    limit_s, shutdown_s = spec.resources.time_limit, spec.limits.shutdown_s
    if limit_s is not None and limit_s <= shutdown_s + LEAVE_S:
        longer = format_duration(shutdown_s + LEAVE_S)
        shorter = limit_s // 2 - LEAVE_S
        fix = f"write a time_limit above {longer}"
        if shorter > 0:
            fix += f", or timeouts.shutdown: {format_duration(shorter)}"
        yield Problem(
            TIME_LIMIT,
            f"{format_duration(limit_s)}, and a stop begins timeouts.shutdown "
            f"({format_duration(shutdown_s)}) and {LEAVE_S} s before it: no time would be left to "
            "train",
            fix,
            involves=(("timeouts", "shutdown"),),
        )


def _grace_problems(spec: JobSpec) -> Iterator[Problem]:
    """Who preempts a job kills it after a time of the site's."""
    usual_s, shutdown_s = spec.timeouts.shutdown, spec.limits.shutdown_s
    said = format_duration(usual_s)  # what stands where the fault points
    if shutdown_s < usual_s:
        said += f", {format_duration(shutdown_s)} beside this resources.time_limit"
    for site, grace_s in (("slurm", spec.slurm.grace), ("kubernetes", spec.kubernetes.grace)):
        if grace_s is not None and shutdown_s > grace_s:
            yield Problem(
                ("timeouts", "shutdown"),
                f"{said}, and a preempted job is killed after {site}.grace "
                f"({format_duration(grace_s)}): its checkpoint may be cut off",
                f"write timeouts.shutdown: {format_duration(grace_s)}, and see that a checkpoint "
                "takes less",
                involves=((site, "grace"),),
            )


def _phase_problems(spec: JobSpec) -> Iterator[Problem]:
    """A limit that the job writes can be reached. For the others the time limit comes first."""
    limit_s = spec.resources.time_limit
    if limit_s is None:
        return
    for name in spec.timeouts.given(*PHASES):
        own_s = getattr(spec.timeouts, name)
        if own_s + HANG_REPORT_S >= limit_s:
            yield Problem(
                ("timeouts", name),
                f"{format_duration(own_s)}, and with {HANG_REPORT_S} s to report where each rank "
                f"is that is not below resources.time_limit ({format_duration(limit_s)}): it could "
                "never be reached",
                f"make it shorter, or resources.time_limit longer than "
                f"{format_duration(own_s + HANG_REPORT_S)}",
                involves=(TIME_LIMIT,),
            )


def _step_problems(spec: JobSpec) -> Iterator[Problem]:
    """The first step of an attempt is a step, and more."""
    first_s, step_s = spec.limits.first_step_s, spec.limits.step_s
    if first_s < step_s:
        yield Problem(
            ("timeouts", "first_step"),
            f"{format_duration(first_s)}, and a later step may take timeouts.step "
            f"({format_duration(step_s)}): the first one also compiles and connects",
            f"write timeouts.step: {format_duration(first_s)} or less, or remove first_step",
            involves=(("timeouts", "step"),),
        )


def nesting_doubts(spec: JobSpec, target: str) -> Iterator[Problem]:
    """Yield which limits, that the job does not write, have given way to those that it does, and
    that a stop begins early.

    Args:
        target: what starts the job; on this machine nothing stops it at its time limit.
    """
    limits, usual = spec.limits, spec.timeouts
    if target != "local":
        yield from _early_doubts(spec, target)
    if limits.shutdown_s < usual.shutdown:
        yield Problem(
            TIME_LIMIT,
            f"{format_duration(spec.resources.time_limit or 0)} is too short for timeouts.shutdown "
            f"({format_duration(usual.shutdown)}), which is {format_duration(limits.shutdown_s)} "
            "here: the stop begins at half of the time",
            "see that a checkpoint takes less, or write a longer time_limit",
        )
    if limits.step_s < usual.step:
        yield Problem(
            ("timeouts", "first_step"),
            f"{format_duration(limits.first_step_s)} is below timeouts.step "
            f"({format_duration(usual.step)}), which is {format_duration(limits.step_s)} here",
            f"write timeouts.step: {format_duration(limits.step_s)} if that is meant",
        )


def _early_doubts(spec: JobSpec, target: str) -> Iterator[Problem]:
    """A stop of the length that was written begins before half of the time. Slurm begins it then
    (--signal), node.py in a pod at half (Signals.limit)."""
    limit_s, lead_s = spec.resources.time_limit, spec.limits.shutdown_s + LEAVE_S
    if limit_s is None or limit_s >= 2 * lead_s:
        return
    begin = f"after {format_duration(limit_s - lead_s)}" if target == "slurm" else "at half of it"
    yield Problem(
        TIME_LIMIT,
        f"{format_duration(limit_s)} leaves little beside timeouts.shutdown "
        f"({format_duration(spec.limits.shutdown_s)}): the stop begins {begin}",
        "write a longer time_limit, or a shorter timeouts.shutdown",
        involves=(("timeouts", "shutdown"),),
    )
