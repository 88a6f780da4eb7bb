"""What submitit's SlurmExecutor is given for a plan, by submitit's own names, and node.py by the
tasks."""

from __future__ import annotations

import shlex
from typing import Any

from orchestrator.directives import directives
from orchestrator.node_network import network_arguments
from orchestrator.plan import LaunchPlan
from orchestrator.spec.timeouts import LEAVE_S

# Options of sbatch that are parameters of SlurmExecutor.update_parameters under the same name
# (submitit 1.5, slurm/slurm.py, _make_sbatch_string); the others are its additional_parameters.
NAMED = (
    "account", "comment", "constraint", "cpus-per-gpu", "cpus-per-task", "dependency", "exclude",
    "exclusive", "gpus-per-node", "gpus-per-task", "gres", "job-name", "mail-type", "mail-user",
    "mem", "mem-per-cpu", "mem-per-gpu", "nodelist", "partition", "qos", "wckey",
)  # fmt: skip
# submitit writes these itself, or counts with them, so that they must be numbers.
OWN = ("nodes", "ntasks-per-node", "open-mode", "signal", "time")


def submitit_settings(plan: LaunchPlan) -> dict[str, Any]:
    """Return the arguments of the executor and its parameters, fit for JSON.

    What holds a path of a machine is added at submit.
    """
    named: dict[str, str | bool] = {}
    more: dict[str, str | bool] = {}
    for option, value in directives(plan):
        where, name = (named, option.replace("-", "_")) if option in NAMED else (more, option)
        if option not in OWN:
            where[name] = True if value is None else value
    parameters = {
        **named,
        "additional_parameters": more,
        "nodes": plan.num_nodes,
        "ntasks_per_node": plan.tasks_per_node,
        "signal_delay_s": plan.shutdown_timeout_s + LEAVE_S,
        "time": -(-(plan.time_limit_s or 0) // 60),
        "srun_args": _srun_args(plan),
    }
    executor = {"max_num_timeout": plan.requeues, "python": shlex.quote(plan.slurm.python)}
    return {
        "version": 1,
        "executor": executor,
        "parameters": parameters,
        "node_arguments": network_arguments(plan),
    }


def _srun_args(plan: LaunchPlan) -> list[str]:
    """As job.sh has them; srun does not take the cores over from sbatch (since Slurm 22.05)."""
    sizes = [f"--nodes={plan.num_nodes}", f"--ntasks={plan.num_nodes}", "--ntasks-per-node=1"]
    sizes.append(f"--cpus-per-task={plan.cpus_per_task}")
    # A task that leaves with a code must not end the one that asks for the requeue.
    return [*sizes, "--kill-on-bad-exit=0", "--wait=0", "--export=ALL"]
