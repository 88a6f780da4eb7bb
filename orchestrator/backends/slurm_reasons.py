"""Slurm's reasons for which a job waits or has ended, in plain words.

The codes are those of squeue(1), "JOB REASON CODES", and of Slurm's page "Job Reason Codes"
(job_reason_codes.html), of 22.05 to 24.11. The many limits of accounts and of a QOS are read from
their names.
"""

from __future__ import annotations

import re

REASONS = {
    "AccountNotAllowed": "the account may not use this partition",
    "AccountingPolicy": "a limit of the account's stands against it",
    "AssociationJobLimit": "the account has as many jobs as it may have at once",
    "AssociationResourceLimit": "the account has all that it may have at once",
    "AssociationTimeLimit": "the account's time is used up",
    "BadConstraints": "no nodes can ever meet what it asks for: correct constraint or nodes",
    "BeginTime": "its earliest start has not come; Slurm holds a requeued job back for a while",
    "BurstBufferOperation": "the burst buffer refused it",
    "BurstBufferResources": "waits for room in the burst buffer",
    "BurstBufferStageIn": "its files are being copied in",
    "Cleaning": "its former run is being cleaned up",
    "DeadLine": "it cannot end before its --deadline",
    "Dependency": "waits for another job: one of `after`, or one of the same name",
    "DependencyNeverSatisfied": "the job it waits for ended otherwise than `after` wants, so it "
    "will never start: cancel it",
    "FedJobLock": "another cluster of the federation holds it",
    "FrontEndDown": "no front-end node is up",
    "InactiveLimit": "it was idle for longer than the site allows",
    "InvalidAccount": "there is no such account, or it is not yours: correct it in the profile",
    "InvalidQOS": "there is no such QOS, or it is not yours: correct it in the profile",
    "JobArrayTaskLimit": "as many elements of its array run as may run at once",
    "JobHeldAdmin": "an administrator holds it: ask them",
    "JobHeldUser": "you hold it: `scontrol release` lets it go on",
    "JobHoldMaxRequeue": "held, since it was requeued too often: `scontrol release` lets it go on",
    "JobLaunchFailure": "its batch script could not be started: look at file system and nodes",
    "Licenses": "waits for a licence",
    "MaxMemPerLimit": "it asks for more memory for each CPU or node than the site allows",
    "MaxPoweredUpNodes": "as many nodes are powered up as may be at once",
    "MpiPortsBusy": "no ports for MPI are free on its nodes",
    "NodeDown": "a node that it needs is down",
    "NonZeroExitCode": "its batch script left with an error",
    "OutOfMemory": "it took more memory than it had asked for",
    "PartitionConfig": "it asks for what its partition does not have",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is switched off",
    "PartitionNodeLimit": "it asks for more nodes than its partition allows, or has up",
    "PartitionTimeLimit": "its time limit is longer than its partition allows: shorten "
    "resources.time_limit",
    "PowerNotAvail": "there is no power for its nodes",
    "PowerReserved": "the power for its nodes is reserved",
    "Priority": "other jobs come first",
    "Prolog": "its nodes are being prepared",
    "QOSJobLimit": "the QOS has as many jobs as it may have at once",
    "QOSNotAllowed": "the QOS may not be used in this partition, or by this account",
    "QOSResourceLimit": "the QOS has all that it may have at once",
    "QOSTimeLimit": "the QOS's time is used up",
    "QOSUsageThreshold": "too little of the QOS's share is left",
    "RaisedSignal": "a signal ended its batch script",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved, perhaps for maintenance",
    "Reservation": "waits for its reservation to begin",
    "ReservationDeleted": "its reservation was deleted",
    "ReservationInvalid": "its reservation is not valid any more",
    "Resources": "it is next, and waits for nodes to become free",
    "SchedDefer": "Slurm looks at it in its next round",
    "SystemFailure": "Slurm, a file system or the network failed",
    "TimeLimit": "the time limit passed",
    "WaitingForScheduling": "Slurm has not looked at it yet",
    # Not codes, but what slurmctld writes in their place.
    "Nodes": "the nodes that it needs are down, drained or kept for others",
    "job_requeued_in_held_state": "held after a requeue: `scontrol release` lets it go on",
    "launch": "held, since its batch script could not be started: `scontrol release` tries again",
}  # fmt: skip
SILENT = ("", "None", "(null)")
HELD = ("JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue", "job_requeued_in_held_state", "launch")

LIMIT = re.compile(
    r"(?P<who>Assoc|QOS|)(?P<how>Grp|Max|Min)(?P<submit>Submit)?"
    r"(?P<what>BB|Billing|CPUs?|Cpu|Energy|GRES|Jobs?|License|Memory|Mem|Node|Unknown|"
    r"WallDuration|Wall)"
    r"(?P<time>RunMinutes|RunMins|Minutes)?(?P<per>PerJob|PerNode|PerUser|PerAccount)?"
    r"(?:Limit|NotSatisfied)?"
)
WHAT = {
    "BB": "burst buffer",
    "Billing": "billing units",
    "Cpu": "CPUs",
    "CPU": "CPUs",
    "CPUs": "CPUs",
    "Energy": "energy",
    "GRES": "GPUs (GRES)",
    "Job": "jobs",
    "Jobs": "jobs",
    "License": "licences",
    "Mem": "memory",
    "Memory": "memory",
    "Node": "nodes",
    "Unknown": "a resource",
    "Wall": "time",
    "WallDuration": "time",
}
WHO = {"Assoc": "the account", "QOS": "the QOS", "": "the account"}


def explain(reason: str) -> str:
    """A reason as Slurm gives it, with what it means; "" where there is none.

    Args:
        reason: as squeue, scontrol or sacct print it, details and all, such as
            `ReqNodeNotAvail, UnavailableNodes:node[1-2]`.

    One that is not known is returned as it is.
    """
    if reason in SILENT:
        return ""
    code = code_of(reason)
    words = REASONS.get(code) or _limit(code)
    return f"{reason}: {words}" if words else reason


def code_of(reason: str) -> str:
    """The code of a reason, without what Slurm has added to it."""
    return re.split(r"[\s,:(]", reason.strip("() "), maxsplit=1)[0]


def is_held(reason: str) -> bool:
    """Whether a pending job waits for a person to release it."""
    return code_of(reason) in HELD


def _limit(code: str) -> str:
    """The meaning of a limit's name, such as QOSMaxGRESPerUser; "" if it is none."""
    match = LIMIT.fullmatch(code)
    if match is None:
        return ""
    who, what = WHO[match["who"]], WHAT[match["what"]]
    if match["submit"]:
        return f"{who} has as many jobs submitted as it may have"
    if match["how"] == "Min":
        return f"{who} wants jobs with more {what} than it asks for: ask for more"
    if match["time"] == "Minutes":
        return _minutes(match, who, what)
    if match["time"]:
        return f"running jobs have booked all the {what} times minutes that {who} may have at once"
    return _amount(match, who, what)


def _minutes(match: re.Match[str], who: str, what: str) -> str:
    if match["per"]:
        return f"it asks for more {what} times minutes than {who} allows a job: ask for less"
    return f"{who} has used up its budget of {what} times minutes: ask who grants it"


def _amount(match: re.Match[str], who: str, what: str) -> str:
    per, is_max = match["per"], match["how"] == "Max"
    if match["what"].startswith("Wall") and is_max:
        return f"it asks for more {what} than {who} allows: shorten resources.time_limit"
    if per in ("PerJob", "PerNode"):
        each = "a job" if per == "PerJob" else "a node of a job"
        return f"it asks for more {what} than {who} allows {each}: ask for less"
    is_yours = per == "PerUser" or (is_max and not per)
    if what == "jobs":
        return f"as many of {'your' if is_yours else 'all its'} jobs run as {who} allows at once"
    if is_yours:
        return f"your jobs hold all the {what} that {who} allows a user at once"
    return f"its jobs together hold all the {what} that {who} may have at once"
