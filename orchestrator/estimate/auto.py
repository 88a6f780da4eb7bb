"""`parallelism.strategy: auto`: the job with the strategy that advice takes, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import FaultsError
from orchestrator.estimate.advice import Advice, advise
from orchestrator.estimate.hardware import hardware_of
from orchestrator.estimate.lines import changes, given, left_open, spec_with
from orchestrator.estimate.model import outline_of
from orchestrator.estimate.reason import shape_words
from orchestrator.estimate.search import Question
from orchestrator.estimate.setting import Setting
from orchestrator.spec.base import KeyPath, Problem
from orchestrator.spec.job import job_problems
from orchestrator.spec.resolve import Origin
from orchestrator.spec.strategies import parallelism_problems

if TYPE_CHECKING:
    from orchestrator.estimate.outline import Outline
    from orchestrator.profiles import ClusterProfile
    from orchestrator.spec import JobSpec, ResolvedJob

STRATEGY: KeyPath = ("parallelism", "strategy")


def with_strategy(job: ResolvedJob, profile: ClusterProfile, job_file: Path) -> ResolvedJob:
    """Return the job with the strategy that advice takes wherever it says `auto`, and in `chosen`
    what that is and why; a job that says it nowhere as it is.

    Args:
        job_file: where it is, for what `orchestrate-trainer inspect` has written beside it.

    Raises:
        FaultsError: at the strategy: the card's memory is not known, or nothing fits.
        UserError: there is no usable outline of a model of the user's own.
    """
    spec, chosen = job.spec, []
    found: dict[str, Any] = {}
    if spec.parallelism.strategy == "auto":
        spec, words, found = _concrete(job, spec, profile, job_file)
        chosen.append(f"parallelism.strategy: auto is {words}")
    elements = []
    for number, element in enumerate(job.elements):
        if element.spec.parallelism.strategy == "auto":
            where = f"element {number} of the sweep: "
            one, words, _ = _concrete(job, element.spec, profile, job_file, where)
            element = element._replace(spec=one)
            chosen.append(f"element {number}: parallelism.strategy: auto is {words}")
        elements.append(element)
    origins = {**job.origins, **_origins(job, found)}
    return job._replace(
        spec=spec,
        elements=tuple(elements),
        origins=origins,
        chosen=tuple(chosen),
        written=job.spec if found else None,
    )


def _concrete(
    job: ResolvedJob, spec: JobSpec, profile: ClusterProfile, job_file: Path, where: str = ""
) -> tuple[JobSpec, str, dict[str, Any]]:
    """Return the job, what was chosen and why, and the keys that were chosen."""
    advice = advise(question_of(spec, profile, job_file, given(spec)))
    if advice.best is None:
        raise FaultsError([job.fault(_problem(advice, where))])
    setting = advice.best.setting
    concrete = spec_with(spec, setting)
    problems = list(job_problems(concrete))
    if problems:
        raise FaultsError([job.fault(problem) for problem in problems])
    words = f"{shape_words(setting)}. {advice.reason}"
    return concrete, words, changes(spec, setting).set


def question_of(
    spec: JobSpec, profile: ClusterProfile, job_file: Path, fixed: frozenset[str]
) -> Question:
    """Return the question for a job.

    Args:
        fixed: names of what stays as it is (see lines.KEYS).
    """
    outline, hardware = outline_of(spec, job_file), hardware_of(spec, profile)
    setting, open_spec = Setting.of(spec), left_open(spec)
    if spec.parallelism.shard_group is not None:  # given, and the strategy is not
        setting = replace(setting, shard_group=spec.parallelism.shard_group)

    def allowed(one: Setting) -> bool:
        concrete = spec_with(open_spec, one)
        if any(parallelism_problems(concrete)):
            return False
        # Of a range of nodes no number is given up.
        is_asked = one.num_nodes == setting.num_nodes
        return not is_asked or set(concrete.node_sizes) >= set(spec.node_sizes)

    def outline_at(context: int) -> Outline | None:
        if spec.train.model.sizes is None:
            return None  # of a model that was inspected with one context
        return outline_of(spec_with(spec, replace(setting, context=context)), job_file)

    memory, ranks = spec.resources.memory, spec.resources.num_ranks_per_node
    return Question(
        setting=setting,
        outline=outline,
        hardware=hardware,
        fixed=fixed,
        allowed=allowed,
        node_sizes=spec.node_sizes,
        host_bytes=memory // ranks if memory is not None else None,
        on_cpu=not spec.resources.gpus_per_node,
        outline_at=outline_at,
    )


def _problem(advice: Advice, where: str) -> Problem:
    fixes = [remedy.words for remedy in advice.remedies]
    fix = "what would help: " + "; or ".join(fixes) if fixes else "or write a strategy"
    return Problem(STRATEGY, f"{where}auto: {advice.reason}", fix)


def _origins(job: ResolvedJob, found: dict[str, Any]) -> dict[KeyPath, Origin]:
    if not found:
        return {}
    asked = job.origins.get(STRATEGY, Origin("default", "default")).label
    return {tuple(key.split(".")): Origin("auto", f"strategy: auto, {asked}") for key in found}
