"""The #SBATCH lines of a plan, by the long names of sbatch(1)."""

from __future__ import annotations

from orchestrator.plan import LaunchPlan
from orchestrator.spec.timeouts import LEAVE_S

MIB = 2**20
Directives = list[tuple[str, str | None]]
# Keys of the site's facts that are options of sbatch under the same name.
_NAMED = (
    "partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude",
    "begin", "comment", "mail_type", "mail_user",
)  # fmt: skip


def directives(plan: LaunchPlan) -> Directives:
    """Return the options with their values, None for one without a value, in a fixed order."""
    slurm = plan.slurm
    own: Directives = [
        ("job-name", plan.name),
        # Two jobs of one name never run at once: the name is the run.
        ("dependency", "singleton"),
        *_nodes(plan),
        *_gpus(plan),
        *_limits(plan),
        ("signal", f"B:{slurm.signal}@{plan.shutdown_timeout_s + LEAVE_S}"),
        ("open-mode", "append"),
        ("requeue", None),
    ]
    site: Directives = [
        (name.replace("_", "-"), value) for name in _NAMED if (value := getattr(slurm, name))
    ]
    if slurm.exclusive:
        site.append(("exclusive", None))
    return [*own, *site, *sorted(slurm.options.items())]


def _nodes(plan: LaunchPlan) -> Directives:
    if plan.is_elastic:
        # With a number of tasks Slurm takes that of the fewest nodes, and gives no more nodes than
        # tasks (seen on 22.05). Without one each node has the cores of a task.
        cores = plan.cpus_per_task * plan.tasks_per_node
        sizes = f"{plan.node_sizes[0]}-{plan.num_nodes}"
        return [("nodes", sizes), ("cpus-per-task", str(cores))]
    return [
        ("nodes", str(plan.num_nodes)),
        # torchrun: one task a node, which starts the ranks.
        ("ntasks-per-node", str(plan.tasks_per_node)),
        ("cpus-per-task", str(plan.cpus_per_task)),
    ]


def _gpus(plan: LaunchPlan) -> Directives:
    if not plan.gpus_per_node:
        return []
    count = f"{plan.gpu_type}:{plan.gpus_per_node}" if plan.gpu_type else str(plan.gpus_per_node)
    if plan.slurm.gpus == "gres":
        return [("gres", f"gpu:{count}")]
    return [("gpus-per-node", count)]


def _limits(plan: LaunchPlan) -> Directives:
    limits: Directives = []
    if plan.memory_bytes is not None:
        # Whole MiB, rounded up: what sbatch takes without a unit.
        limits.append(("mem", f"{-(-plan.memory_bytes // MIB)}M"))
    if plan.time_limit_s is not None:
        limits.append(("time", time_words(plan.time_limit_s)))
    return limits


def time_words(seconds: int) -> str:
    """Return seconds as days-hours:minutes:seconds, which sbatch takes."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    return f"{day}-{hour:02}:{minute:02}:{second:02}"
