"""What a job becomes on one cluster, or on each of several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator.cli.common import Loaded, load_job, say, say_cluster
from orchestrator.errors import Fault, FaultsError, UserError
from orchestrator.render import Rendered, render
from orchestrator.spec.kubernetes_target import KUBERNETES_TARGETS


class Wanted(NamedTuple):
    """What a command line asks to render.

    Args:
        clusters: names of profiles; none for the default one.
        sets: those of --set.
        target: --target; only where one cluster at most is named.
        policy_file: --policy.
        expand_variables: whether ${NAME} is replaced, as submit does it; otherwise refused.
    """

    job: Path
    clusters: Sequence[str]
    clusters_file: str | None
    sets: Sequence[str]
    target: str | None = None
    policy_file: str | None = None
    expand_variables: bool = False


def render_each(wanted: Wanted) -> list[tuple[Loaded, Rendered]]:
    """Return what the job becomes on each cluster, in the order named.

    Raises:
        FaultsError: with the faults for all clusters, each once.
        UserError: several clusters where one of them is not for Kubernetes, or one named twice.
    """
    names = wanted.clusters
    if len(set(names)) < len(names) or (wanted.target is not None and len(names) > 1):
        raise UserError(
            "--cluster: several of them make an overlay each; give each once, without --target"
        )
    faults: list[Fault] = []
    each = []
    for cluster in names or (None,):
        try:
            loaded = _load(wanted, cluster)
            each.append((loaded, render(loaded.plan())))
        except FaultsError as error:
            faults += error.faults
    if faults:
        raise FaultsError(dict.fromkeys(faults))
    for loaded, rendered in each if len(each) > 1 else ():
        _check_kubernetes(loaded, rendered)
    return each


def _load(wanted: Wanted, cluster: str | None) -> Loaded:
    job, _, clusters_file, sets, target, policy_file, expand = wanted
    loaded = load_job(
        job, cluster, clusters_file, sets,
        target=target, expand_variables=expand, policy_file=policy_file,
    )  # fmt: skip
    say(f"# {say_cluster(loaded.profile, loaded.source)}", err=True)
    if loaded.resolved.variables and not expand:
        raise FaultsError(loaded.resolved.variables)
    return loaded


def is_kubernetes(rendered: Rendered) -> bool:
    """Whether these files are manifests."""
    return rendered.target in KUBERNETES_TARGETS


def _check_kubernetes(loaded: Loaded, rendered: Rendered) -> None:
    if not is_kubernetes(rendered):
        raise UserError(
            f"cluster {loaded.profile.name} is for {rendered.target}, and overlays are for "
            "Kubernetes. Give it a folder of its own, by a command of its own."
        )
