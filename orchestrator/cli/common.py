"""What several commands share: their options, and the way from a job file to a plan."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orchestrator.errors import Fault, FaultsError, OrchestrateError, UserError, printable

if TYPE_CHECKING:
    from orchestrator.backends.base import Backend, Handle, Status
    from orchestrator.plan import LaunchPlan
    from orchestrator.profiles import ClusterProfile, ProfileSource
    from orchestrator.source import Document
    from orchestrator.spec import ResolvedJob

F = TypeVar("F", bound=Callable[..., Any])

# A single run's name is no number, so that this is no path to one.
ELEMENT = r"[a-z][a-z0-9-]*(\.old-[0-9]+)?/[0-9]{1,4}"

job_argument = click.argument("job", type=click.Path(path_type=Path), metavar="JOB.YAML")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


def cluster_options(function: F) -> F:
    """--cluster, --clusters."""
    function = click.option(
        "--clusters", "clusters_file", metavar="FILE", help="File with the cluster profiles."
    )(function)
    return click.option(
        "--cluster", metavar="NAME", help="Cluster profile to use; `local` where none is set."
    )(function)


def clusters_options(function: F) -> F:
    """--cluster, any number of times, and --clusters."""
    function = click.option(
        "--clusters", "clusters_file", metavar="FILE", help="File with the cluster profiles."
    )(function)
    return click.option(
        "--cluster", "clusters", metavar="NAME", multiple=True,
        help="Cluster profile to use; `local` where none is set. Repeatable for Kubernetes: an "
        "overlay for each, on a base that is the first one's.",
    )(function)  # fmt: skip


def set_option(function: F) -> F:
    return click.option(
        "--set", "sets", multiple=True, metavar="KEY=VALUE",
        help="Set a key over all else, for example --set train.steps=50. Repeatable.",
    )(function)  # fmt: skip


@dataclass(frozen=True)
class Loaded:
    """A job file, checked against a cluster, and what is doubtful in it."""

    document: Document
    resolved: ResolvedJob
    profile: ClusterProfile
    source: ProfileSource
    policy_file: str | None = None
    warnings: tuple[Fault, ...] = ()

    def plan(self) -> LaunchPlan:
        """Return the plan of the job. Raises FaultsError with what a policy does not allow."""
        from orchestrator.cli.policies import obey
        from orchestrator.plan import make_plan

        obey(self.resolved, self.profile, self.policy_file)
        resolved = self.resolved
        return make_plan(resolved.spec, self.profile, resolved.elements, resolved.chosen)


def load_profile(
    cluster: str | None, clusters_file: str | None, target: str | None = None
) -> tuple[ClusterProfile, ProfileSource]:
    """Return the profile named, or the default one, and its source; warnings go to stderr."""
    from orchestrator.profiles import find_profiles

    source = find_profiles(clusters_file, os.environ, Path.cwd())
    for warning in source.warnings:
        say(f"warning: {warning}", err=True)
    profile = source.choose(cluster)
    if target is not None and target != profile.target:
        profile = _neutral_profile(target)
    return profile, source


def _neutral_profile(target: str) -> ClusterProfile:
    """The profile that ships with the tool for `target`."""
    from orchestrator.profiles import embedded_profiles

    neutral = {profile.target: profile for profile in embedded_profiles().profiles.values()}
    if target not in neutral:
        raise UserError(f"--target {target}: no such target; there are {', '.join(neutral)}")
    return neutral[target]


def load_job(
    path: Path,
    cluster: str | None,
    clusters_file: str | None,
    sets: Sequence[str],
    *,
    target: str | None = None,
    expand_variables: bool = False,
    policy_file: str | None = None,
) -> Loaded:
    """Read and check the job file at `path`; warnings go to stderr. Raises FaultsError with all
    faults at once; whether policies allow it, of which --policy names `policy_file`, is judged when
    the plan is made."""
    from orchestrator.cli.doubts import say_doubts
    from orchestrator.source import read_document
    from orchestrator.spec import resolve_job

    profile, source = load_profile(cluster, clusters_file, target)
    document = read_document(path)
    expanded, unset = _expand(document) if expand_variables else (document, ())
    try:
        # As the file stands, for submit too: variables work in free texts only.
        resolved = resolve_job(document, profile, sets)
    except FaultsError as error:
        raise FaultsError((*unset, *error.faults)) from None
    if unset:
        raise FaultsError(unset)
    if expanded is not document:
        resolved = resolve_job(expanded, profile, sets)
    resolved = _with_strategy(resolved, profile, path)
    warnings = say_doubts(resolved, profile)
    return Loaded(document, resolved, profile, source, policy_file, warnings)


def _with_strategy(resolved: ResolvedJob, profile: ClusterProfile, path: Path) -> ResolvedJob:
    """The job with a strategy for `auto`; what it is goes to stderr."""
    if all(spec.parallelism.strategy != "auto" for spec in resolved.specs):
        return resolved
    from orchestrator.estimate.auto import with_strategy  # late: few jobs leave it open

    chosen = with_strategy(resolved, profile, path)
    for line in chosen.chosen:
        say(line, err=True)
    return chosen


def _expand(document: Document) -> tuple[Document, tuple[Fault, ...]]:
    """Return the document with its variables replaced, or as it is with what hindered that."""
    from orchestrator.spec import expand

    try:
        return expand(document, os.environ), ()
    except FaultsError as error:
        return document, error.faults


@contextmanager
def faults_as_json(as_json: bool) -> Iterator[None]:
    """With --json, print whatever goes wrong inside as JSON too; the exit code stays the same."""
    try:
        yield
    except (OrchestrateError, OSError) as error:
        if not as_json:
            raise
        print_json({"valid": False, "faults": [fault.as_dict() for fault in _faults(error)]})
        code = error.exit_code if isinstance(error, OrchestrateError) else 1
        raise click.exceptions.Exit(code) from None


def _faults(error: OrchestrateError | OSError) -> Sequence[Fault]:
    if isinstance(error, FaultsError):
        return error.faults
    words = os_error_words(error) if isinstance(error, OSError) else str(error)
    return [Fault("", None, "", words)]


def say_cluster(profile: ClusterProfile, source: ProfileSource) -> str:
    """Which profile is used and which file it comes from."""
    named = source.profiles.get(profile.name) is profile
    return f"cluster {profile.name} ({source.label if named else 'embedded profiles'})"


def find_run(run: str, profile: ClusterProfile) -> Handle:
    """Return the handle of RUN: a name under the runs root, also `SWEEP/NUMBER` for an element of a
    sweep, or the path of a run folder."""
    is_name = "/" not in run or re.fullmatch(ELEMENT, run)
    folder = runs_root(profile) / run if is_name else Path(run)
    if profile.ssh is not None or profile.is_kubernetes:  # not here: the backend looks
        return backend_of(profile).handle(folder)
    folder = home_expanded(str(folder))
    if not _may_be_file(folder / "receipt.json"):
        raise UserError(
            f"no run {run!r}: {folder} has no receipt.json. "
            "`orchestrate list` shows the runs of a cluster; give its name, or its folder with a /."
        )
    return backend_of(profile).handle(folder)


def _may_be_file(path: Path) -> bool:
    """Whether there is such a file; True where that cannot be told, so that its reader says why."""
    try:
        return path.is_file()
    except PermissionError:
        return True


def runs_root(profile: ClusterProfile) -> Path:
    """The folder of all runs; a relative one lies in the working folder."""
    if profile.ssh is not None or profile.is_kubernetes:
        # On another machine `~` is another folder: the backend expands it there.
        return Path(profile.runs_root)
    return home_expanded(profile.runs_root)


def home_expanded(path: str) -> Path:
    """Return the path with the home folder for its `~`. Raises UserError if there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{path}: there is no home folder for its ~; write a whole path") from None


def backend_of(profile: ClusterProfile) -> Backend:
    """The backend of a cluster, at its place."""
    from orchestrator.backends import load_backend
    from orchestrator.backends.base import SiteBackend

    backend = load_backend(profile.target, profile.ssh)
    return backend.for_site(profile.kubernetes) if isinstance(backend, SiteBackend) else backend


def statuses_of(backend: Backend, handles: Sequence[Handle]) -> list[Status]:
    """The status of each run; UNKNOWN with the reason for one whose files cannot be read."""
    try:
        return backend.status(handles)
    except OSError:
        return [_status_alone(backend, handle) for handle in handles]


def _status_alone(backend: Backend, handle: Handle) -> Status:
    from orchestrator.backends.base import State, Status

    try:
        return backend.status([handle])[0]
    except OSError as error:
        return Status(handle.run, State.UNKNOWN, reason=os_error_words(error))


def os_error_words(error: OSError) -> str:
    """What the operating system refused, with the file's name where it is known."""
    words = error.strerror or str(error)
    return f"{error.filename}: {words}" if error.filename else words


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, sort_keys=True))


def say(text: str, *, err: bool = False) -> None:
    """Print text for people: nothing in it can steer the terminal."""
    click.echo("\n".join(printable(line) for line in text.split("\n")), err=err)


def say_data(text: str) -> None:
    """Print the content of files: as it is, but for what could steer a terminal."""
    if sys.stdout.isatty():
        say(text.removesuffix("\n"))
    else:
        click.echo(text, nl=False)


def shell_path(path: Path) -> str:
    """The path as a shell takes it for an argument of this command."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def status_words(status: Status, handle: Handle) -> dict[str, Any]:
    """A status for a program to read."""
    return {
        "run": status.run,
        "run_dir": str(handle.run_dir),
        "state": status.state.name,
        "attempt": status.attempt,
        "reason": status.reason,
        "step": status.step,
        "steps": status.steps,
    }
