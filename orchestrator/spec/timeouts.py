"""How long each phase of a run may take: the keys, and what holds where none is given."""

from typing import NamedTuple

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from orchestrator.spec.base import Duration, Part, duration

MINUTE_S = 60
# From the end of timeouts.shutdown, when node.py kills what has not stopped, to the time limit: for
# the end to be told. trainer/node.py has the same; on Slurm it is in the lead of --signal.
LEAVE_S = 30
MIN_SHUTDOWN_S = 30  # what is shorter is no time for a checkpoint, and somebody's decision
UNWRITTEN = "unwritten"  # key of a validation's context: limits that only a profile's defaults give
HANG_REPORT_S = 30  # from a hang until all ranks have said where they are; HANG_GRACE_S of node.py


class Timeouts(Part):
    """How long each phase of an attempt may take before it counts as failed."""

    queue: Duration | None = Field(
        default=None,
        description="Longest wait for the scheduler to start the run; none by default. Slurm and "
        "Kubernetes: whoever follows the run (submit --watch, watch) cancels it then.",
    )
    start: Duration | None = Field(
        default=None,
        description="From the first node's start until all nodes have reported; by default 10m and "
        "a second for each node. Slurm and Kubernetes: the roll call names the nodes that are "
        "missing.",
    )
    rendezvous: Duration | None = Field(
        default=None,
        description="From the roll call until all ranks have formed the process group; by default "
        "10m and a second for each node.",
    )
    load: Duration | None = Field(
        default=None,
        description="Longest time for model, data and checkpoint to load; by default 30m "
        "and a second for each node.",
    )
    first_step: Duration | None = Field(
        default=None,
        description="The first step of an attempt, in which kernels are compiled and connections "
        "made; by default 30m, or timeouts.step where that is longer.",
    )
    step: Duration = duration(
        "30m",
        "Longest time without progress in a step, in an evaluation's batch or in a wait for data. "
        "After it every rank says where it is, and the attempt ends as a hang.",
    )
    evaluation: Duration | None = Field(
        default=None, description="Longest time for a whole evaluation; no limit by default."
    )
    checkpoint: Duration = duration(
        "30m",
        "Longest time that one checkpoint may take until it is published; while the run stops, "
        "timeouts.shutdown holds as well.",
    )
    shutdown: Duration = duration(
        "5m",
        "From the request to stop until what still runs is killed; long enough for a checkpoint. "
        "Not written, it is at most half of resources.time_limit less 30 s. "
        "Slurm: lead of --signal; Kubernetes: terminationGracePeriodSeconds is a minute more.",
    )

    _by_profile: frozenset[str] = PrivateAttr(default=frozenset())

    @model_validator(mode="after")
    def _only_what_the_job_writes(self, info: ValidationInfo) -> "Timeouts":
        """A limit of a profile's defaults is a default: it counts as given by nobody."""
        if info.context is not None:
            self._by_profile = frozenset(self.given(*info.context[UNWRITTEN]))
            self.model_fields_set.difference_update(info.context[UNWRITTEN])
        return self

    def weight(self, name: str) -> int:
        """Return how much a limit counts against another: 2 by the job, 1 by a profile's defaults,
        0 by nobody."""
        return 2 if self.given(name) else int(name in self._by_profile)


class PhaseLimits(NamedTuple):
    """Seconds for each phase, with what depends on the job's size filled in; None: no limit."""

    queue_s: int | None
    start_s: int
    rendezvous_s: int
    load_s: int
    first_step_s: int
    step_s: int
    evaluation_s: int | None
    checkpoint_s: int
    shutdown_s: int


def phase_limits(timeouts: Timeouts, num_nodes: int, time_limit_s: int | None) -> PhaseLimits:
    """Return the limits of a job on up to `num_nodes` nodes: file systems and name servers answer
    the later, the more nodes ask at once. What the job does not write gives way to what it does.

    Args:
        time_limit_s: of an attempt; None where it is the site's.
    """
    by_size_s = 10 * MINUTE_S + num_nodes
    first_step_s, step_s = _steps_s(timeouts)
    return PhaseLimits(
        queue_s=timeouts.queue,
        start_s=timeouts.start or by_size_s,
        rendezvous_s=timeouts.rendezvous or by_size_s,
        load_s=timeouts.load or 30 * MINUTE_S + num_nodes,
        first_step_s=first_step_s,
        step_s=step_s,
        evaluation_s=timeouts.evaluation,
        checkpoint_s=timeouts.checkpoint,
        shutdown_s=_shutdown_s(timeouts, time_limit_s),
    )


def _steps_s(timeouts: Timeouts) -> tuple[int, int]:
    """Seconds of the first step and of a later one: of two that contradict one another, the one
    that counts less gives way. Two that count the same are a fault (nesting.py)."""
    first_s, step_s = timeouts.first_step or 30 * MINUTE_S, timeouts.step
    first, later = timeouts.weight("first_step"), timeouts.weight("step")
    if first_s >= step_s or first == later:
        return first_s, step_s
    return (first_s, first_s) if first > later else (step_s, step_s)


def _shutdown_s(timeouts: Timeouts, time_limit_s: int | None) -> int:
    """Seconds of a stop; in an attempt that is too short for them, so many that the stop begins at
    half of it, where that is enough for a checkpoint."""
    usual_s = timeouts.shutdown
    if time_limit_s is None or timeouts.given("shutdown"):
        return usual_s
    half_s = time_limit_s // 2 - LEAVE_S
    return min(usual_s, half_s) if half_s >= MIN_SHUTDOWN_S else usual_s
