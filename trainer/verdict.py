"""Which ranks the others wait for, from what each has told when the attempt hung."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainer.hang_report import Group, Place, Report
from trainer.limits import SAVING

# A rank that waits for the others before there is a group to record it.
RENDEZVOUS = Group("of all ranks", 1, 1, "the rendezvous")
MOST_RANKS = 64  # that are described one by one


@dataclass(frozen=True)
class Verdict:
    """Why the attempt hangs. ranks: those that the others wait for; empty if none is missing.

    message: one line; detail: a line for each rank; host: of the first rank at fault.
    """

    ranks: list[int]
    message: str
    detail: str
    host: str


def judge(
    num_ranks: int, reports: Mapping[int, Report], places: Mapping[int, Place], why: str = ""
) -> Verdict:
    """Compare what `num_ranks` ranks (reports) and node.py for them (places) have told.

    why: the limit that a rank has exceeded, in words; "" if none of them has said.
    """
    ranks = range(num_ranks)
    missing = [r for r in ranks if _is_missing(reports.get(r), places.get(r))]
    # Ranks that others set free, by being continued for their stacks, may compute by now.
    sure = [r for r in missing if r not in reports or (r in places and _is_stopped(places[r]))]
    missing = sure or missing
    longest = max(reports.values(), key=lambda report: report.quiet_s, default=None)
    if longest and not why:
        why = f"no progress for {longest.quiet_s:g} s in {when(longest.phase, longest.step)}"
    since = why or "a hang"
    lines = [_line(r, reports.get(r), places.get(r)) for r in _chosen(missing, ranks)]
    detail = "\n".join(lines)
    if not missing:
        return Verdict([], f"{since}: {_mismatch(reports)}", detail, "?")
    first = missing[0]
    fault = f"{_named(missing)} ({_host(reports.get(first), places.get(first))})"
    fault += f" {'is' if len(missing) == 1 else 'are'} missing"
    if waited := _waited_for(missing, reports):
        fault += f" from {waited}"
    text = f"{since}: {fault}: {_doing(reports.get(first), places.get(first))}"
    return Verdict(missing, text, detail, _host(reports.get(first), places.get(first)))


def _is_missing(report: Report | None, place: Place | None) -> bool:
    if report is None or (place is not None and _is_stopped(place)):
        return True
    return not any(group.waits_in is not None for group in _own_groups(report))


def _is_stopped(place: Place) -> bool:
    return place.state[:1] in ("T", "t")  # proc(5): stopped by a signal, or by a debugger


def _own_groups(report: Report) -> Iterable[Group]:
    """The groups in which the main thread of a rank may wait."""
    if report.phase == "rendezvous":
        return [RENDEZVOUS]
    if report.phase in SAVING:
        return report.groups
    return (group for group in report.groups if not group.aside)


def _waited_for(missing: list[int], reports: Mapping[int, Report]) -> str:
    """The collective in which the others wait, in words; "" if none does."""
    waiting = [g for r, report in reports.items() if r not in missing for g in _own_groups(report)]
    group = next((group for group in waiting if group.waits_in is not None), None)
    if group is None:
        return ""
    here = [r for r, report in reports.items() if r not in missing and _waits(report, group)]
    return f"{_collective(group)}, where {_named(here)} {'waits' if len(here) == 1 else 'wait'}"


def _waits(report: Report, wanted: Group) -> bool:
    groups = (*report.groups, *_own_groups(report))
    return any((g.name, g.waits_in) == (wanted.name, wanted.waits_in) for g in groups)


def _collective(group: Group) -> str:
    if group is RENDEZVOUS:
        return group.operation
    return f"{group.operation} #{group.waits_in} of group {group.name}"


def _mismatch(reports: Mapping[int, Report]) -> str:
    """Where the ranks wait if all of them do, which means that they wait for different things."""
    held: dict[str, list[int]] = {}
    for rank, report in reports.items():
        for group in _own_groups(report):
            if group.waits_in is not None:
                held.setdefault(_collective(group), []).append(rank)
    waits = "; ".join(f"{_named(ranks)} in {words}" for words, ranks in held.items())
    if len(held) == 1:
        return f"all ranks are in the same collective ({waits}): look at the network"
    return f"no rank is missing, but they are in different collectives: {waits}"


def _doing(report: Report | None, place: Place | None) -> str:
    """What a missing rank does, in words."""
    at = (place.at if place else "") or (report.at if report else "")  # node.py asks at once
    where = f" at {at}" if at else ""
    if place is not None and _is_stopped(place):
        return f"its process was stopped, state {place.state},{where}"
    if report is None:
        return _silent(place) + where
    below = f"; below it: {'; '.join(place.below)}" if place and place.below else ""
    return f"it is in phase {report.phase}{where}{below}"


def _silent(place: Place | None) -> str:
    if place is None:
        return "nothing was heard of it or of its node"
    if place.state.startswith("D"):
        return "its process waits for a disk or a network file system (state D)"
    return "its process lives, but Python runs in none of its threads: native code holds the lock"


def _line(rank: int, report: Report | None, place: Place | None) -> str:
    host = _host(report, place)
    if report is None:
        return f"rank {rank} ({host}): {_doing(report, place)}"
    waits = [g for g in report.groups if g.waits_in is not None]
    words = [f"waits in {g.operation} #{g.waits_in} of group {g.name}" for g in waits]
    words += [f"last was #{g.last} of group {g.name}" for g in report.groups if g not in waits]
    told = f"{when(report.phase, report.step)}, {report.quiet_s:g} s without progress"
    return f"rank {rank} ({host}): {'; '.join([told, _doing(report, place), *words])}"


def _chosen(missing: list[int], ranks: range) -> list[int]:
    """The ranks to describe: the missing first, then others as far as there is room."""
    return [*missing, *(r for r in ranks if r not in missing)][:MOST_RANKS]


def when(phase: str, step: int) -> str:
    """A phase after `step` steps, in words."""
    if phase in ("data", "step"):
        return f"step {step + 1}"
    return f"phase {phase} after step {step}"


def _host(report: Report | None, place: Place | None) -> str:
    return report.host if report else place.host if place else "?"


def _named(ranks: list[int]) -> str:
    more = f" and {len(ranks) - 20} more" if len(ranks) > 20 else ""
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {', '.join(map(str, ranks[:20]))}{more}"
