"""Who admits and schedules the pods of a run together."""

from typing import Literal

from pydantic import Field

from orchestrator.spec.base import Duration, Part
from orchestrator.spec.kubernetes_types import LabelKey, LabelledName, ObjectName


class Kueue(Part):
    """Admission by Kueue."""

    queue: LabelledName | None = Field(
        default=None, description="LocalQueue: label kueue.x-k8s.io/queue-name of the object."
    )
    priority: LabelledName | None = Field(
        default=None, description="WorkloadPriorityClass: label kueue.x-k8s.io/priority-class."
    )
    topology: Literal["required", "preferred", "unconstrained"] | None = Field(
        default=None, description="Which podset topology annotation the pod template gets."
    )
    topology_level: LabelKey | None = Field(
        default=None, description="Node label of the level, for required and preferred."
    )


class Volcano(Part):
    """Gang scheduling by Volcano."""

    queue: ObjectName | None = Field(default=None, description="Volcano's queue.")
    priority_class: ObjectName | None = Field(default=None, description="The pod group's priority.")


class Coscheduling(Part):
    """Gang scheduling by the scheduler plug-in of that name."""

    schedule_timeout: Duration | None = Field(
        default=None, description="How long the gang waits for its last pod."
    )
    scheduler: ObjectName | None = Field(
        default=None, description="schedulerName of the scheduler with the plug-in."
    )
