"""From what a bench was asked to its runs: which cells, the files of each, and the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.bench.book import DONE, REFUSED, Book, Row
from orchestrator.bench.calibrate import Observation
from orchestrator.bench.cells import (
    CPU_ENVIRONMENT,
    Cell,
    all_cells,
    common_sets,
    run_name,
    sweep_set,
)
from orchestrator.bench.measured import Figures, planned
from orchestrator.bench.runs import Place, Prepared, ended_by_sigterm, first_line
from orchestrator.cli.common import Loaded, load_job, runs_root, say
from orchestrator.cli.place import backend_for
from orchestrator.cli.submit import workdir_of
from orchestrator.errors import OrchestrateError, UserError
from orchestrator.estimate.hardware import hardware_of
from orchestrator.estimate.model import outline_of
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.whole import estimate
from orchestrator.render import render

if TYPE_CHECKING:
    from orchestrator.spec import JobSpec

MOST_CELLS = 200


@dataclass(frozen=True)
class Asked:
    """A bench as the command line has it.

    Args:
        sets: `--set` options, weaker than those of the cells.
        steps: of each run.
    """

    job: Path
    cluster: str | None
    clusters_file: str | None
    sets: tuple[str, ...]
    steps: int

    def base(self) -> Loaded:
        """Return the job as it is written. Raises FaultsError, and UserError for a sweep."""
        loaded = self._load(())
        if loaded.resolved.spec.sweep is not None:
            raise UserError(f"{self.job}: sweep: a bench makes its own runs; remove it")
        return loaded

    def of_cell(self, name: str, cell: Cell) -> Loaded:
        """Return the job as a run of a cell. Raises FaultsError where that is not allowed."""
        return self._load(cell.sets(name, self.steps))

    def of_array(self, name: str, cells: Sequence[Cell]) -> Loaded:
        """Return the job as a sweep over cells that have the same nodes."""
        nodes = cells[0].nodes
        common = common_sets(run_name(name, f"n{nodes}"), nodes, self.steps)
        return self._load([*common, sweep_set(cells)])

    def on(self, base: Loaded) -> Asked:
        """Return the same with what runs on a CPU need to be measured."""
        on_gpus = base.resolved.spec.resources.gpus_per_node > 0
        return self if on_gpus else replace(self, sets=(*self.sets, *CPU_ENVIRONMENT))

    def _load(self, sets: Sequence[str]) -> Loaded:
        return load_job(
            self.job,
            self.cluster,
            self.clusters_file,
            [*self.sets, *sets],
            expand_variables=True,
        )


def wanted_cells(
    spec: JobSpec,
    strategies: Sequence[str],
    nodes: Sequence[int],
    micros: Sequence[int],
    layers: Sequence[int],
) -> list[Cell]:
    """Return all combinations; what is not given is the job's own."""
    cells = all_cells(
        strategies or [spec.parallelism.strategy],
        nodes or [spec.resources.max_nodes],
        micros or [spec.train.batch.micro],
        layers or [None],
    )
    if len(cells) > MOST_CELLS:
        raise UserError(f"{len(cells)} combinations, and at most {MOST_CELLS} are run")
    return cells


def run_missing(
    asked: Asked,
    base: Loaded,
    book: Book,
    cells: Sequence[Cell],
    *,
    array: bool,
    retry: bool,
    timeout_s: float,
) -> None:
    """Run the cells that have no row yet, and keep a row for each as it ends."""
    name = base.resolved.spec.name
    left = list(_left(asked, name, book, cells, retry))
    place = Place(
        backend_for(base),
        runs_root(base.profile),
        workdir_of(asked.job, base.profile),
        base.document.text,
        timeout_s,
        fresh=not base.profile.is_kubernetes,
    )
    with ended_by_sigterm():
        if array:
            _run_arrays(asked, name, book, left, place)
            return
        for number, one in enumerate(left, 1):
            say(f"{number}/{len(left)}: {one.rendered.name}", err=True)
            _add(book, place.run(one))


def _run_arrays(
    asked: Asked, name: str, book: Book, left: Sequence[Prepared], place: Place
) -> None:
    for nodes in dict.fromkeys(one.cell.nodes for one in left):
        here = [one for one in left if one.cell.nodes == nodes]
        rendered = render(asked.of_array(name, [one.cell for one in here]).plan())
        say(f"{rendered.name}: {len(here)} elements", err=True)
        for row in place.run_array(here, rendered):
            _add(book, row)


def _add(book: Book, row: Row) -> None:
    book.add(row)
    if row.state != DONE:
        say(f"{row.run}: {row.state}: {row.reason}", err=True)


def _left(
    asked: Asked, name: str, book: Book, cells: Sequence[Cell], retry: bool
) -> Iterator[Prepared]:
    """Those that have to run; what the job file does not allow has its row at once."""
    for cell in cells:
        try:
            one = _prepared(asked, name, cell)
        except OrchestrateError as error:
            run = run_name(name, cell.label)
            _add(book, Row(cell, run, "", REFUSED, first_line(str(error))))
            continue
        if not book.has(cell, one.digest, retry):
            yield one


def _prepared(asked: Asked, name: str, cell: Cell) -> Prepared:
    loaded = asked.of_cell(name, cell)
    rendered, spec = render(loaded.plan()), loaded.resolved.spec
    return Prepared(cell, rendered, Setting.of(spec).tokens_per_step, _planned(loaded, asked.job))


def _planned(loaded: Loaded, job: Path) -> Figures:
    """What the planner says; nothing of a model that it does not know."""
    spec = loaded.resolved.spec
    try:
        outline = outline_of(spec, job)
    except OrchestrateError:
        return Figures()
    return planned(estimate(Setting.of(spec), outline, hardware_of(spec, loaded.profile)))


def observations(asked: Asked, rows: Sequence[Row]) -> list[Observation]:
    """Return what the rows that are done say of the machine. Raises UserError where the model is
    not known."""
    name = asked.base().resolved.spec.name
    return [
        _observation(asked, name, row) for row in rows if row.measured.step_s and row.state == DONE
    ]


def _observation(asked: Asked, name: str, row: Row) -> Observation:
    loaded = asked.of_cell(name, row.cell)
    spec = loaded.resolved.spec
    return Observation(
        Setting.of(spec),
        outline_of(spec, asked.job),
        row.measured.step_s or 0.0,
        row.measured.peak_bytes,
        hardware_of(spec, loaded.profile).scatter_rounds,
    )
