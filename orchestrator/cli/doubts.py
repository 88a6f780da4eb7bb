"""What is doubtful in a job, and no fault: said on standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.errors import Fault, FaultsError, printable

if TYPE_CHECKING:
    from orchestrator.profiles import ClusterProfile
    from orchestrator.spec import ResolvedJob


def say_doubts(job: ResolvedJob, profile: ClusterProfile) -> tuple[Fault, ...]:
    """Say what is doubtful, and return what of it has a place in a file.

    Raises FaultsError with what is wrong with the network.
    """
    # Late: `--help` needs none of it.
    from orchestrator.network_check import check_network
    from orchestrator.spec.kubernetes_target import target_notes
    from orchestrator.spec.nesting import nesting_doubts

    for note in target_notes(job.spec, profile):
        click.echo(printable(f"note: {note}"), err=True)
    found = check_network(job, profile)
    warnings = (*found.warnings, *map(job.fault, nesting_doubts(job.spec, profile.target)))
    for warning in warnings:
        click.echo(warning.as_warning(), err=True)
    if found.faults:
        raise FaultsError(found.faults)
    return warnings
