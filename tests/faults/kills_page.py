"""The table of docs/faults.md that `make faults` writes: a row for each cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

from harness import Account
from plan import CELLS, EVERY, KEEP, NUM_RANKS, STEPS, Case, Cell

PATH = "docs/faults.md"
MARK = "<!-- What follows is written by `make faults`. -->\n"
COLUMNS = ("cell", "runs", "kills", "where", "steps made again, most", "until all ranks end, most")
HEAD = """
{kills} kills in {runs} runs: {num_ranks} ranks, {steps} steps, a checkpoint each {every}, the last
{keep} of them kept, with dropout. Every run was resumed after each kill, and came to the losses of
all steps and to the SHA-256 over weights, moments, random states and progress of the run of its
strategy that nothing happened to.
"""


def page(old: str, accounts: Mapping[Case, Sequence[Account]]) -> str:
    """The page with the table of these runs in place of the one before."""
    text, mark, _ = old.partition(MARK)
    if not mark:
        raise ValueError(f"{PATH} lacks the line {MARK!r}")
    return text + mark + HEAD.format(
        kills=sum(map(len, accounts.values())), runs=len(accounts), num_ranks=NUM_RANKS,
        steps=STEPS, every=EVERY, keep=KEEP,
    ) + "\n" + table(accounts)  # fmt: skip


def table(accounts: Mapping[Case, Sequence[Account]]) -> str:
    """A row for each cell, and one for all."""
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    rows += [_row(str(cell), _of_cell(accounts, cell)) for cell in CELLS]
    rows.append(_row("all", list(accounts.values())))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _of_cell(accounts: Mapping[Case, Sequence[Account]], cell: Cell) -> list[Sequence[Account]]:
    return [found for case, found in accounts.items() if case.cell == cell]


def _row(name: str, runs: Sequence[Sequence[Account]]) -> tuple[str, ...]:
    kills = list(chain.from_iterable(runs))
    places = Counter(account.kill.place for account in kills)
    where = ", ".join(f"{number} {place}" for place, number in sorted(places.items()))
    repeated = max(account.repeated for account in kills)
    ending_s = max(account.ending_s for account in kills)
    return name, str(len(runs)), str(len(kills)), where, str(repeated), f"{ending_s:.1f} s"
