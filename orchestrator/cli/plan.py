"""`orchestrate plan`: memory, traffic, time and advice, before anything is queued."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.common import (
    Loaded,
    cluster_options,
    faults_as_json,
    job_argument,
    json_option,
    load_job,
    print_json,
    say,
    say_cluster,
    set_option,
)

if TYPE_CHECKING:
    from orchestrator.estimate.advice import Advice
    from orchestrator.estimate.figures import Estimate
    from orchestrator.estimate.grid import Cell
    from orchestrator.estimate.lines import Change
    from orchestrator.estimate.search import Question
    from orchestrator.estimate.setting import Setting
    from orchestrator.spec import ResolvedJob

# What advice may not change by itself; it says what other numbers of nodes would do.
KEPT = frozenset({"num_nodes", "context"})


@dataclass(frozen=True)
class Planned:
    """What is shown of a job."""

    question: Question
    estimate: Estimate
    advice: Advice
    resolved: ResolvedJob

    def change(self, setting: Setting) -> Change:
        """What to do to the job file for a setting; nothing where `auto` takes it by itself."""
        from orchestrator.estimate.lines import Change, changes

        written = self.resolved.written
        if written is not None and setting == self.question.setting:
            return Change({}, ())
        return changes(written or self.resolved.spec, setting)


@click.command(name="plan")
@job_argument
@cluster_options
@click.option("--compare", "axes", metavar="AXES",
              help="Compare combinations, as strategy=ddp,full_shard;nodes=1,2;micro=4,8: what "
              "fits first, the fastest first.")  # fmt: skip
@click.option("--plot", "plot_file", type=click.Path(path_type=Path, dir_okay=False),
              metavar="FILE", help="Draw memory and traffic of what is compared (.png or .svg); "
              "without --compare of all strategies.")  # fmt: skip
@click.option("--check", is_flag=True, help="Exit with 1 if the job does not fit, or "
              "if nothing can be said to fit.")  # fmt: skip
@set_option
@json_option
def command(
    job: Path,
    cluster: str | None,
    clusters_file: str | None,
    axes: str | None,
    plot_file: Path | None,
    check: bool,
    sets: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say what JOB.YAML needs and moves, how long it takes, and which strategy to take.

    Nothing is started, and no torch is needed: memory of the fullest rank by what it is for, bytes
    that a step sends inside and between nodes, time and cost where the cluster profile knows the
    hardware, where the limit is, and advice with its reason.

    \b
    Examples:
      orchestrate plan job.yaml
      orchestrate plan job.yaml --cluster big --check
      orchestrate plan job.yaml --compare 'strategy=ddp,full_shard;nodes=1,2,4'
      orchestrate plan job.yaml --plot plan.svg
    """
    with faults_as_json(as_json):
        loaded = load_job(job, cluster, clusters_file, sets)
        planned = _planned(loaded, job)
        cells = _cells(loaded, planned, axes, plot_file)
        if plot_file is not None:
            from orchestrator.cli.plan_plot import plot

            plot(cells, planned.question.hardware, plot_file)
    if as_json:
        print_json(_answer(planned, cells if axes else []))
    else:
        _print(loaded, planned, cells if axes else [])
    if check and planned.estimate.fits is None:
        say(f"--check: nothing was checked. {planned.advice.reason}", err=True)
    if check and not planned.estimate.fits:
        raise click.exceptions.Exit(1)


def _planned(loaded: Loaded, job: Path) -> Planned:
    from orchestrator.estimate.advice import advise
    from orchestrator.estimate.auto import question_of

    resolved = loaded.resolved
    question = question_of(resolved.spec, loaded.profile, job, KEPT)
    one = question.estimate(question.setting)
    return Planned(question, one, advise(question), resolved)


def _cells(
    loaded: Loaded, planned: Planned, axes: str | None, plot_file: Path | None
) -> list[Cell]:
    from orchestrator.estimate.grid import cells, parse_axes

    if axes is None and plot_file is None:
        return []
    wanted = "strategy=ddp,shard_grad_op,full_shard,hybrid_shard" if axes is None else axes
    return cells(loaded.resolved.spec, planned.question, parse_axes(wanted))


def _answer(planned: Planned, cells: list[Cell]) -> dict[str, Any]:
    from orchestrator.estimate.answers import advice_answer, plan_answer

    hardware = planned.question.hardware
    answer = plan_answer(planned.estimate, hardware)
    answer["advice"] = advice_answer(planned.advice, planned.change, hardware)
    answer["chosen"] = list(planned.resolved.chosen)
    if cells:
        answer["compared"] = [
            {
                "values": cell.values,
                "problem": cell.problem,
                "plan": plan_answer(cell.estimate, hardware) if cell.estimate else None,
            }
            for cell in cells
        ]
    return answer


def _print(loaded: Loaded, planned: Planned, cells: list[Cell]) -> None:
    from orchestrator.cli.plan_words import cells_table, plan_text

    say(f"# {say_cluster(loaded.profile, loaded.source)}", err=True)
    if cells:
        say(cells_table(cells))
        return
    say(plan_text(loaded.resolved.spec, planned))
