"""--policy, and the policies that hold for a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from orchestrator.profiles import ClusterProfile
    from orchestrator.spec import ResolvedJob

POLICY_VARIABLE = "ORCHESTRATE_POLICY"

F = TypeVar("F", bound=Callable[..., Any])


def policy_option(function: F) -> F:
    return click.option(
        "--policy", "policy_file", metavar="FILE",
        help="A platform team's policy to keep to, beside the profile's and $ORCHESTRATE_POLICY's.",
    )(function)  # fmt: skip


def obey(job: ResolvedJob, profile: ClusterProfile, option: str | None) -> None:
    """Raise FaultsError with all that the policies which hold do not allow.

    Args:
        job: as it holds in the end.
        profile: the cluster.
        option: what --policy named, or None.
    """
    files = list(_files(profile, option))
    if files:
        from orchestrator.policy_check import check_policies  # late: few jobs have a policy

        check_policies(files, job, profile)


def _files(profile: ClusterProfile, option: str | None) -> Iterator[tuple[Path, str]]:
    """Yield the files of all policies that hold, and what to call each: that of the profile,
    relative to the profile's own file, that of the environment, and that of the option."""
    named = [os.environ.get(POLICY_VARIABLE), option]
    if profile.policy is not None:
        named.insert(0, str(Path(profile.file).parent / profile.policy))
    yield from ((Path.cwd() / name, name) for name in named if name)
