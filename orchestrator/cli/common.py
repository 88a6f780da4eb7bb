"""What several commands share: their options, and the way from a job file to a plan."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orchestrator.errors import Fault, FaultsError, UserError

if TYPE_CHECKING:
    from orchestrator.backends.base import Backend, Handle, Status
    from orchestrator.plan import LaunchPlan
    from orchestrator.profiles import ClusterProfile, ProfileSource
    from orchestrator.source import Document
    from orchestrator.spec import ResolvedJob

F = TypeVar("F", bound=Callable[..., Any])

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


def set_option(function: F) -> F:
    return click.option(
        "--set", "sets", multiple=True, metavar="KEY=VALUE",
        help="Set a key over all else, for example --set train.steps=50. Repeatable.",
    )(function)  # fmt: skip


@dataclass(frozen=True)
class Loaded:
    """A job file, checked against a cluster."""

    document: Document
    resolved: ResolvedJob
    profile: ClusterProfile
    source: ProfileSource

    def plan(self) -> LaunchPlan:
        from orchestrator.plan import make_plan

        return make_plan(self.resolved.spec, self.profile)


def load_profile(
    cluster: str | None, clusters_file: str | None, target: str | None = None
) -> tuple[ClusterProfile, ProfileSource]:
    """Return the profile named, or the default one, and its source; warnings go to stderr."""
    from orchestrator.profiles import find_profiles

    source = find_profiles(clusters_file, os.environ, Path.cwd())
    for warning in source.warnings:
        click.echo(f"warning: {warning}", err=True)
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
) -> Loaded:
    """Read and check the job file at `path`. Raises FaultsError with all faults at once."""
    from orchestrator.source import read_document
    from orchestrator.spec import resolve_job

    profile, source = load_profile(cluster, clusters_file, target)
    document = read_document(path)
    expanded, unset = _expand(document) if expand_variables else (document, ())
    try:
        resolved = resolve_job(expanded, profile, sets)
    except FaultsError as error:
        raise FaultsError((*unset, *error.faults)) from None
    if unset:
        raise FaultsError(unset)
    return Loaded(document, resolved, profile, source)


def _expand(document: Document) -> tuple[Document, tuple[Fault, ...]]:
    """Return the document with its variables replaced, or as it is with what hindered that."""
    from orchestrator.spec import expand

    try:
        return expand(document, os.environ), ()
    except FaultsError as error:
        return document, error.faults


def say_cluster(profile: ClusterProfile, source: ProfileSource) -> str:
    """Which profile is used and which file it comes from."""
    named = source.profiles.get(profile.name) is profile
    return f"cluster {profile.name} ({source.label if named else 'embedded profiles'})"


def find_run(run: str, profile: ClusterProfile) -> Handle:
    """Return the handle of RUN: a name under the runs root, or the path of a run folder."""
    folder = Path(run) if "/" in run else runs_root(profile) / run
    if not (folder / "receipt.json").is_file():
        raise UserError(
            f"no run {run!r}: {folder} has no receipt.json. "
            "`orchestrate list` shows the runs of a cluster; give its name, or its folder with a /."
        )
    return backend_of(profile).handle(folder)


def runs_root(profile: ClusterProfile) -> Path:
    """The folder of all runs; a relative one lies in the working folder."""
    return Path(profile.runs_root).expanduser()


def backend_of(profile: ClusterProfile) -> Backend:
    from orchestrator.backends import load_backend

    return load_backend(profile.target)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, sort_keys=True))


def status_words(status: Status) -> dict[str, Any]:
    """A status for a program to read."""
    return {
        "run": status.run,
        "state": status.state.name,
        "attempt": status.attempt,
        "reason": status.reason,
        "step": status.step,
        "steps": status.steps,
    }
