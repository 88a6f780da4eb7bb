"""What is wrong with where pods may run and who admits them: rules of core/v1 and of the queues.

kubernetes.io API reference: Toleration, NodeSelectorRequirement, TopologySpreadConstraint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.spec.base import KeyPath, Problem

if TYPE_CHECKING:
    from orchestrator.spec.kubernetes import Kubernetes, NodeRequirement, Toleration
    from orchestrator.spec.kubernetes_queues import Kueue

QUEUES = ("kueue", "volcano", "coscheduling")


def scheduling_problems(kubernetes: Kubernetes) -> Iterator[Problem]:
    """Yield what is wrong, with paths from the section `kubernetes`."""
    yield from _queue_problems(kubernetes)
    for index, toleration in enumerate(kubernetes.tolerations):
        yield from (p.under(("tolerations", index)) for p in _toleration_problems(toleration))
    for index, requirement in enumerate(kubernetes.node_affinity):
        yield from (p.under(("node_affinity", index)) for p in _requirement_problems(requirement))
    seen = set()
    for index, spread in enumerate(kubernetes.topology_spread):
        constraint = (spread.topology_key, spread.when_unsatisfiable)
        if constraint in seen:
            yield Problem(
                ("topology_spread", index),
                f"a second one for {spread.topology_key} with {spread.when_unsatisfiable}",
                "remove one of them",
            )
        seen.add(constraint)


def _queue_problems(kubernetes: Kubernetes) -> Iterator[Problem]:
    given = [name for name in QUEUES if getattr(kubernetes, name) is not None]
    for name in given[1:]:
        yield Problem(
            (name,),
            f"{given[0]} is given too, and a run is admitted by one alone",
            f"remove one of them, or write {given[0]}: null over what another layer gives",
            "key",
            involves=((given[0],),),
        )
    if kubernetes.kueue is not None:
        yield from (p.under(("kueue",)) for p in _kueue_problems(kubernetes.kueue))
        if kubernetes.suspend:
            yield Problem(
                ("suspend",),
                "Kueue suspends and resumes the object itself",
                "remove it; kubectl can hold the queue or deactivate the workload",
                "key",
                involves=(("kueue",),),
            )


def _kueue_problems(kueue: Kueue) -> Iterator[Problem]:
    if kueue.queue is None:
        message = "Kueue leaves alone what names no queue"
        yield Problem((), message, "add queue: NAME", "key", involves=(("queue",),))
    needs_level = kueue.topology in ("required", "preferred")
    if needs_level and kueue.topology_level is None:
        yield Problem(
            ("topology",),
            f"{kueue.topology} of which level of the topology?",
            "add topology_level with a node's label, such as cloud.provider.com/topology-rack",
        )
    elif kueue.topology_level is not None and not needs_level:
        yield Problem(
            ("topology_level",),
            "goes with topology: required or preferred only",
            "add topology, or remove it",
            "key",
            involves=(("topology",),),
        )


def _toleration_problems(toleration: Toleration) -> Iterator[Problem]:
    if toleration.operator == "Exists" and toleration.value is not None:
        yield Problem(
            ("value",),
            "with Exists no value counts",
            "write operator: Equal, or remove it",
            "key",
            involves=(("operator",),),
        )
    if toleration.operator == "Equal" and toleration.key is None:
        yield Problem(
            ("operator",),
            "Equal without a key compares with nothing",
            "add key, or write operator: Exists for all taints",
            involves=(("key",),),
        )


def _requirement_problems(requirement: NodeRequirement) -> Iterator[Problem]:
    operator, values = requirement.operator, requirement.values
    here: KeyPath = ("values",)
    if operator in ("Exists", "DoesNotExist") and values:
        message, fix = f"{operator} takes no values", "remove them, or write operator: In"
    elif operator in ("In", "NotIn") and not values:
        message, fix = f"{operator} needs at least one value", "add values: [NAME]"
    elif operator in ("Gt", "Lt") and not _is_one_number(values):
        message, fix = f"{operator} needs one whole number", 'write it like values: ["4"]'
    else:
        return
    yield Problem(here, message, fix, involves=(("operator",),))


def _is_one_number(values: tuple[str, ...]) -> bool:
    return len(values) == 1 and re.fullmatch(r"[0-9]{1,18}", values[0]) is not None
