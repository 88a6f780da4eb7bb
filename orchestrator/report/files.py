"""What the small files of a run folder say: attempts, plan, job, versions. Pure: bytes in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator import contract
from orchestrator.goodput import Goodput
from orchestrator.report.clean import Mask, tidy
from orchestrator.report.times import Times
from orchestrator.report.told import Told, count, number, text

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Attempt:
    """One attempt's folder.

    Args:
        owner, end, outcome, verdict: its files of these names; empty where there is none.
        errors: what ranks have reported, of the newest attempt alone.
        is_newest: whether no later one has been started.
    """

    number: int
    owner: Facts = field(default_factory=dict)
    end: Facts = field(default_factory=dict)
    outcome: Facts = field(default_factory=dict)
    verdict: Facts = field(default_factory=dict)
    errors: tuple[Facts, ...] = ()
    is_newest: bool = False

    @property
    def result(self) -> str:
        """How it ended; `not ended`, or `lost` for one that others followed, where nothing says."""
        outcome = text(dict(self.outcome), "outcome")
        code = count(dict(self.end), "code")
        if code is None:
            return outcome or ("not ended" if self.is_newest else "lost")
        name = contract.EXIT_NAMES.get(code, "failed")
        return "drained" if name == "requeue" and outcome == "drained" else name

    @property
    def reason(self) -> str:
        """Why it ended, and who was at fault; empty where nothing says so."""
        if self.verdict and self.result == "hang":
            return text(dict(self.verdict), "message") or text(dict(self.end), "reason")
        said = text(dict(self.end), "reason")
        reported = "; ".join(
            f"rank {error.get('rank')} on {error.get('host')}: {text(dict(error), 'message')}"
            for error in self.errors
        )
        return "" if said == self.result else said or reported

    @property
    def detail(self) -> str:
        return text(dict(self.end), "detail")


@dataclass(frozen=True)
class Run:
    """Everything about a run that a page shows.

    Args:
        name: of the run.
        job: the job file as it was given, without what looks like a secret.
        rendered: what was rendered, by the file's name, without secrets too.
        environment: variables that the launcher sets, by name.
        trainer: what the bundled trainer was told; empty for a script.
        spec: the job's keys with their values, defaults filled in if has_defaults; empty if they
            can't be known.
        versions: of what ran, by name.
        attempts: the newest; num_attempts: with those that are left out.
        times: of attempts and steps, by the ledger.
        mask: hides its secrets in every text about it.
        left_out: what could not be read, and why.
    """

    name: str
    told: Told
    job: str = ""
    rendered: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    receipt: Facts = field(default_factory=dict)
    trainer: Facts = field(default_factory=dict)
    spec: Facts = field(default_factory=dict)
    has_defaults: bool = True
    plan: Facts = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    attempts: tuple[Attempt, ...] = ()
    num_attempts: int = 0
    times: Times = field(default_factory=Times)
    mask: Mask = field(default_factory=Mask)
    goodput: Goodput | None = None
    is_done: bool = False
    is_cancelled: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def tokens_per_step(self) -> int | None:
        """Of all ranks together: by what the trainer was told, else by its metrics."""
        keys = ("batch.micro", "batch.accumulation", "model.context", "num_ranks")
        micro, accumulation, context, ranks = (count_at(self.trainer, key) or 0 for key in keys)
        groups = ranks // (count_at(self.trainer, "parallelism.tensor") or 1)
        return micro * accumulation * context * groups or self.told.tokens_per_step

    @property
    def state(self) -> str:
        """How the run stands by its folder alone, so that the same folder gives the same page."""
        if self.is_done:
            return "done"
        if not self.attempts:
            return "no attempt has started"
        last = self.attempts[-1]
        if self.is_cancelled:
            return f"cancelled; attempt {last.number}: {last.result}"
        if last.result == "not ended":
            return f"attempt {last.number} goes on, or was lost without a last word"
        return f"attempt {last.number} ended: {last.result}"


def parsed(data: bytes | str) -> dict[str, Any]:
    """The object in a small JSON file, tidied; empty if there is none that can be read."""
    try:
        content = tidy(json.loads(data))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def flat(value: Facts, prefix: str = "") -> dict[str, Any]:
    """The values of nested maps by their keys with dots; a list is one value."""
    found: dict[str, Any] = {}
    for key, below in value.items():
        name = f"{prefix}{key}"
        if isinstance(below, Mapping) and below:
            found.update(flat(below, f"{name}."))
        else:
            found[name] = below
    return found


def number_at(facts: Facts, path: str) -> float | None:
    """A number below keys with dots between them; None if there is none."""
    return number(*_holder(facts, path))


def count_at(facts: Facts, path: str) -> int | None:
    """The same for a whole number from 0."""
    return count(*_holder(facts, path))


def _holder(facts: Facts, path: str) -> tuple[dict[str, Any], str]:
    """The map that a path leads to, and the last key; an empty map if there is none."""
    where: Any = facts
    *parents, last = path.split(".")
    for key in parents:
        where = where.get(key) if isinstance(where, Mapping) else None
    return (dict(where) if isinstance(where, Mapping) else {}), last
