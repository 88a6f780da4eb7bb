"""Several runs beside one another: their figures, and the keys in which they differ."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orchestrator.goodput import words_of
from orchestrator.report.axis import BYTES, NUMBERS, words
from orchestrator.report.clean import Mask
from orchestrator.report.files import Run, flat
from orchestrator.report.measured import Figures, figures_of

MAX_KEYS = 200
_NUMBER = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?", re.IGNORECASE)
_HEAD = ("run", "state", "step", "training loss", "lowest", "validation loss", "lowest",
         "tokens/s", "peak memory", "goodput", "time", "attempts")  # fmt: skip


def mask_of(runs: Sequence[Run]) -> Mask:
    """What hides the secrets of all of them."""
    return functools.reduce(Mask.joined, (run.mask for run in runs), Mask())


def apart(runs: Sequence[Run]) -> list[Run]:
    """The runs with names that tell them apart: a second `demo` is `demo #2`."""
    seen: Counter[str] = Counter()
    named = []
    for run in runs:
        seen[run.name] += 1
        number = seen[run.name]
        named.append(run if number == 1 else replace(run, name=f"{run.name} #{number}"))
    return named


def table(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """A head and a row for each run, in words."""
    return [_HEAD, *(_row(run, figures_of(run)) for run in runs)]


def _row(run: Run, own: Figures) -> tuple[str, ...]:
    total = "" if own.steps is None else f" / {own.steps:,}"
    return (
        run.name,
        run.state,
        f"{own.step:,}{total}",
        words(own.loss),
        words(own.lowest_loss),
        words(own.validation),
        words(own.best_validation),
        words(own.tokens_per_s, NUMBERS, 3, even=True),
        words(own.memory_bytes, BYTES, 3),
        "-" if own.goodput is None else f"{100 * own.goodput:.1f} %",
        "-" if own.wall_s is None else words_of(own.wall_s),
        str(own.attempts),
    )


def different_keys(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """A row for each key in which runs differ: its name, and its value in each run.

    The keys of the job files come first, but for those of sweeps, which tell of other runs too;
    then those of trainer.json that they do not explain, as
    those given by --set, which the job file does not hold.
    """
    specs = [{key: _word(value) for key, value in flat(run.spec).items()} for run in runs]
    # Where none has its defaults, they are alike, and a key that one lacks is a difference.
    are_whole = [run.has_defaults for run in runs]
    rows = _differing(specs, are_whole if any(are_whole) else [True] * len(runs))
    explained = {row[0].removeprefix("train.") for row in rows} | {"name"}
    told = [{key: _word(value) for key, value in flat(run.trainer).items()} for run in runs]
    more = [row for row in _differing(told, [True] * len(runs)) if row[0] not in explained]
    rows = [row for row in rows if row[0] != "name" and not row[0].startswith("sweep")]
    more = [row for row in more if not _is_said(row, rows)]
    return [*rows, *((f"trainer.json: {row[0]}", *row[1:]) for row in more)][:MAX_KEYS]


def _differing(maps: Sequence[dict[str, str]], are_whole: Sequence[bool]) -> list[tuple[str, ...]]:
    """A row for each key that differs; what lacks in a map that is not whole is no difference."""
    keys = sorted({key for known in maps for key in known})
    found = []
    for key in keys:
        pairs = zip(maps, are_whole, strict=True)
        values = {known.get(key, "") for known, is_whole in pairs if is_whole or key in known}
        if len(values) > 1:
            found.append((key, *(known.get(key, "") for known in maps)))
    # A map that is empty in one run has its keys in another.
    parents = {row[0].rpartition(".")[0] for row in found}
    return [row for row in found if row[0] not in parents]


def _is_said(row: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> bool:
    """Whether a key of trainer.json is one of the job file under a longer name."""
    return any(
        row[1:] == known[1:] and row[0].startswith(known[0].removeprefix("train."))
        for known in rows
    )


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def as_csv(runs: Sequence[Run]) -> str:
    """The figures of the runs for a program, in base units, with the keys in which they differ."""
    keys, mask = different_keys(runs), mask_of(runs)
    names = list(Figures.__dataclass_fields__)
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    cells = functools.partial(_cell, mask)
    writer.writerow(map(cells, ["run", "state", *names, *(row[0] for row in keys)]))
    for number, run in enumerate(runs):
        own = vars(figures_of(run))
        values = ["" if own[name] is None else own[name] for name in names]
        row = [run.name, run.state, *values, *(key[1 + number] for key in keys)]
        writer.writerow(map(cells, row))
    return rows.getvalue()


def _cell(mask: Mask, value: Any) -> Any:
    """A value as a table program takes it for what it is: a text that it would reckon as a formula
    has a ' in front, as OWASP's "CSV Injection" has it."""
    if not isinstance(value, str):
        return value
    known = mask.shown(value)
    return f"'{known}" if known[:1] in "=+-@" and known and not _NUMBER.fullmatch(known) else known
