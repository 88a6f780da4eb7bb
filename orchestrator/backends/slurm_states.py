"""Slurm's states of a job, and what each is here.

The names are those of the manual pages sacct(1) and squeue(1), "JOB STATE CODES", of Slurm 22.05,
and what 24.11 has added.
"""

from __future__ import annotations

from orchestrator.backends.base import State

# name -> state, and what it means where the name alone does not say it
STATES: dict[str, tuple[State, str]] = {
    "BOOT_FAIL": (State.FAILED, "a node could not be booted"),
    "CANCELLED": (State.CANCELLED, "submit it again to continue"),
    "COMPLETED": (State.DONE, ""),
    "COMPLETING": (State.RUNNING, "its last processes are ending"),
    "CONFIGURING": (State.PENDING, "its nodes are being made ready"),
    "DEADLINE": (State.FAILED, "the job's --deadline passed"),
    "EXPEDITING": (State.PENDING, "it is requeued with priority, after a fault of a node"),
    "FAILED": (State.FAILED, ""),
    "LAUNCH_FAILED": (State.FAILED, "Slurm could not start the batch script"),
    "NODE_FAIL": (State.FAILED, "a node failed, and the job was not requeued"),
    "OUT_OF_MEMORY": (State.FAILED, "it took more memory than it had asked for"),
    "PENDING": (State.PENDING, ""),
    "POWER_UP_NODE": (State.PENDING, "its nodes are being powered up"),
    "PREEMPTED": (State.FAILED, "it was preempted, and the job was not requeued"),
    "RECONFIG_FAIL": (State.FAILED, "its nodes could not be configured"),
    "REQUEUED": (State.RESTARTING, "it is being requeued"),
    "REQUEUE_FED": (State.RESTARTING, "the federation is requeueing it"),
    "REQUEUE_HOLD": (State.QUEUED, "it was requeued and is held: `scontrol release` lets it go on"),
    "RESIZING": (State.RUNNING, "its size is being changed"),
    "RESV_DEL_HOLD": (State.QUEUED, "it is held, since its reservation was deleted"),
    "REVOKED": (State.CANCELLED, "another cluster of the federation has taken it"),
    "RUNNING": (State.RUNNING, ""),
    "SIGNALING": (State.RUNNING, "a signal is on its way to it"),
    "SPECIAL_EXIT": (State.QUEUED, "it was requeued and is held: `scontrol release` lets it go on"),
    "STAGE_OUT": (State.RUNNING, "it is copying its files out"),
    "STOPPED": (State.SUSPENDED, "it was stopped by SIGSTOP and keeps its nodes"),
    "SUSPENDED": (State.SUSPENDED, "it gave way to another job, and goes on by itself"),
    "TIMEOUT": (State.FAILED, "the time limit passed, and the job was not requeued"),
}


def state_of(name: str) -> tuple[State, str]:
    """What a state of Slurm's is here, and what it means ("" where its name says it).

    Args:
        name: as squeue, scontrol or sacct print it: `CANCELLED by 1000` and a name that was cut
            off (`OUT_OF_ME+`) are known too.

    A name that is in no manual page is State.UNKNOWN.
    """
    word = name.split()[0].upper() if name.split() else ""
    if word in STATES:
        return STATES[word]
    start = word.removesuffix("+")
    if word.endswith("+") and len(start) >= 4:
        known = [state for state in STATES if state.startswith(start)]
        if len(known) == 1:
            return STATES[known[0]]
    return State.UNKNOWN, f"Slurm says {name!r}, which this release does not know"
