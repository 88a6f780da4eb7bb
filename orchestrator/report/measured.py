"""The figures of a run in words, and what was planned beside them."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.goodput import words_of
from orchestrator.report.axis import BYTES, NUMBERS, PLAIN, Units, words
from orchestrator.report.files import Run, flat, number_at
from orchestrator.report.told import number, text

MAX_PLANNED = 60
MAX_GROUPS = 200
NONE = (None, None)
# Of a plan: the key, what it is, its units.
COMPARED: tuple[tuple[str, str, Units], ...] = (
    ("memory.total_bytes", "peak memory of a rank", BYTES),
    ("step_s", "seconds per step", PLAIN),
    ("tokens_per_s", "tokens per second", NUMBERS),
)


@dataclass(frozen=True)
class Figures:
    """The measured figures of a run; None where one is not known."""

    step: int
    steps: int | None
    loss: float | None
    lowest_loss: float | None
    validation: float | None
    best_validation: float | None
    best_step: int | None
    tokens_per_s: float | None
    step_s: float | None
    memory_bytes: float | None
    goodput: float | None
    wall_s: float | None
    attempts: int


def figures_of(run: Run) -> Figures:
    """The figures of a run; those of the curves without what was made again."""
    told = run.told
    loss, validation = told.curve("loss"), told.curve("validation")
    memory, best = told.curve("peak_memory_bytes").highest, validation.lowest
    speed = told.median_tokens_per_s
    step_s = run.tokens_per_step / speed if run.tokens_per_step and speed else None
    return Figures(
        step=told.progress.step,
        steps=told.progress.steps,
        loss=_y(loss.last),
        lowest_loss=_y(loss.lowest),
        validation=_y(validation.last),
        best_validation=_y(best),
        best_step=best[0] if best else None,
        tokens_per_s=speed,
        step_s=step_s,
        memory_bytes=_y(memory),
        goodput=run.goodput.share if run.goodput else None,
        wall_s=run.goodput.wall_s if run.goodput else None,
        attempts=max(run.num_attempts, len(run.attempts), len(told.starts)),
    )


def _y(point: tuple[int, float] | None) -> float | None:
    return point[1] if point else None


def tiles(run: Run) -> list[tuple[str, str, str]]:
    """What is seen first: name, value, and a word about it."""
    own = figures_of(run)
    of = f"of {own.steps:,}" if own.steps is not None else "steps done"
    best = f"lowest {words(own.best_validation)} at step {own.best_step:,}" if own.best_step else ""
    share = "-" if own.goodput is None else f"{100 * own.goodput:.1f} %"
    time = "" if own.wall_s is None else f"of {words_of(own.wall_s)}"
    return [
        ("Step", f"{own.step:,}", of),
        ("Training loss", words(own.loss), _loss_words(run, own)),
        ("Validation loss", words(own.validation), best),
        ("Tokens per second", words(own.tokens_per_s, NUMBERS, 3, even=True), "median"),
        ("Peak memory", words(own.memory_bytes, BYTES, 3), "of rank 0"),
        ("Goodput", share, time),
        ("Attempts", str(own.attempts), f"{run.told.num_saved:,} checkpoints"),
    ]


def _loss_words(run: Run, own: Figures) -> str:
    """The lowest loss; that the loss is no number any more, if so."""
    lowest, since = f"lowest {words(own.lowest_loss)}", run.told.no_loss_since
    if since is None:
        return lowest
    if own.loss is None:
        return f"not finite since step {since:,}"
    return f"the last that was finite: not so since step {since:,}; {lowest}"


def collectives(run: Run) -> list[tuple[str, ...]]:
    """The collectives of a step, planned and as rank 0 has counted them: kind, ranks in the group,
    of them on one node; calls planned and counted; bytes of the whole tensors planned and counted.
    """
    planned = _by_group(run.plan.get("traffic"), "transfers", "count")
    counted = _by_group(run.told.traffic, "collectives", "calls")
    rows = []
    for group in [*counted, *(group for group in planned if group not in counted)][:MAX_GROUPS]:
        kind, *ranks = group
        pairs = zip(planned.get(group, NONE), counted.get(group, NONE), strict=True)
        calls, sizes = pairs
        shown = [words(one) for one in (*ranks, *calls)]
        rows.append((kind, *shown, *(words(one, BYTES) for one in sizes)))
    return rows


Group = tuple[str, float | None, float | None]


def _by_group(facts: object, key: str, calls: str) -> dict[Group, tuple[float, float]]:
    """Calls and bytes of each kind of collective in each kind of group."""
    given = facts.get(key) if isinstance(facts, dict) else None
    found: dict[Group, tuple[float, float]] = {}
    for one in given if isinstance(given, list) else []:
        if isinstance(one, dict) and text(one, "kind"):
            ranks = number(one, "group_size"), number(one, "ranks_per_node")
            group = (text(one, "kind"), *ranks)
            own = number(one, calls) or 0.0, number(one, "payload_bytes") or 0.0
            before = found.get(group, (0.0, 0.0))
            found[group] = (before[0] + own[0], before[1] + own[1])
    return found


def caveats(run: Run) -> list[str]:
    """What must be known to read planned and measured figures side by side."""
    said = []
    if run.trainer.get("device") == "cpu":
        said.append(
            "This ran on a CPU: what was measured is the resident memory of the process, with "
            "Python and its libraries; the plan counts tensors and the pace of the card it was "
            "told of. The ratios say little."
        )
    else:
        said.append("Planned is the fullest rank's memory; measured is that of rank 0.")
    return said


def against_plan(run: Run) -> list[tuple[str, ...]]:
    """For each figure of the plan that was measured: what, planned, measured, their ratio."""
    own = figures_of(run)
    measured = dict(
        zip((key for key, _, _ in COMPARED), (own.memory_bytes, own.step_s, own.tokens_per_s),
            strict=True)
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for key, name, units in COMPARED:
        planned, seen = number_at(run.plan, key), measured[key]
        if planned is None:
            continue
        ratio = f"{seen / planned:.2f}" if seen is not None and planned else "-"
        digits, even = (3, True) if units is NUMBERS else (4, False)
        shown = [words(one, units, digits, even=even) for one in (planned, seen)]
        rows.append((name, *shown, ratio))
    return rows


def planned_rest(run: Run) -> list[tuple[str, str]]:
    """The plan's other numbers and words; lists of more than words are left to the file."""
    compared = {key for key, _, _ in COMPARED}
    rows = ((key, _planned(key, value)) for key, value in flat(run.plan).items())
    return [(key, word) for key, word in rows if word and key not in compared][:MAX_PLANNED]


def _planned(key: str, value: object) -> str:
    """A value of the plan in words; empty for one that is none."""
    if isinstance(value, list):
        return "; ".join(one for one in value if isinstance(one, str))
    known = number({key: value}, key)
    if known is None:
        return "" if value is None else str(value)
    in_bytes = key.endswith("_bytes") or key.startswith("memory.")
    return words(known, BYTES if in_bytes else PLAIN)
