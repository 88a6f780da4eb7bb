"""Every state and reason that Slurm's manual has is known here; what is not, is shown as it is."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.backends.base import State
from orchestrator.backends.slurm_reasons import REASONS, SILENT, explain, is_held
from orchestrator.backends.slurm_states import STATES, state_of


def words(text: str) -> list[str]:
    return text.split()


# sacct(1) and squeue(1) of Slurm 22.05, "JOB STATE CODES".
SACCT_STATES = words("""BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY
PENDING PREEMPTED RUNNING REQUEUED RESIZING REVOKED SUSPENDED TIMEOUT""")
SQUEUE_STATES = words("""CONFIGURING COMPLETING RESV_DEL_HOLD REQUEUE_FED REQUEUE_HOLD SIGNALING
SPECIAL_EXIT STAGE_OUT STOPPED""")
# job_reason_codes.html of 24.11 and the names in libslurm 22.05 and 24.11, without those of
# hardware that is gone.
WHOLE = words("""AccountNotAllowed AccountingPolicy AssociationJobLimit AssociationResourceLimit
AssociationTimeLimit BadConstraints BeginTime BurstBufferOperation BurstBufferResources
BurstBufferStageIn Cleaning DeadLine Dependency DependencyNeverSatisfied FedJobLock FrontEndDown
InactiveLimit InvalidAccount InvalidQOS JobArrayTaskLimit JobHeldAdmin JobHeldUser JobHoldMaxRequeue
JobLaunchFailure Licenses MaxMemPerLimit MaxPoweredUpNodes MpiPortsBusy NodeDown NonZeroExitCode
OutOfMemory PartitionConfig PartitionDown PartitionInactive PartitionNodeLimit PartitionTimeLimit
PowerNotAvail PowerReserved Priority Prolog QOSJobLimit QOSNotAllowed QOSResourceLimit QOSTimeLimit
QOSUsageThreshold RaisedSignal ReqNodeNotAvail Reservation ReservationDeleted ReservationInvalid
Resources SchedDefer SystemFailure TimeLimit WaitingForScheduling""")
LIMITS = words("""AssocGrpCpuLimit AssocGrpCPUMinutesLimit AssocGrpCPURunMinutesLimit
AssocGrpJobsLimit AssocGrpMemLimit AssocGrpNodeLimit AssocGrpSubmitJobsLimit AssocGrpWallLimit
AssocMaxJobsLimit
AssocMaxCpuPerJobLimit AssocMaxCpuMinutesPerJobLimit AssocMaxNodePerJobLimit
AssocMaxWallDurationPerJobLimit AssocMaxSubmitJobLimit AssocGrpUnknown AssocGrpUnknownMinutes
AssocGrpGRES AssocGrpGRESMinutes AssocGrpGRESRunMinutes AssocMaxGRESPerJob AssocMaxGRESPerNode
AssocMaxGRESMinutesPerJob AssocGrpLicense AssocGrpBB AssocMaxBBPerNode AssocGrpEnergy
AssocGrpBillingRunMinutes AssocMaxMemPerNode AssocMaxCpuPerNode QOSGrpCpuLimit QOSGrpJobsLimit
QOSGrpCPUMinutesLimit QOSGrpSubmitJobsLimit QOSGrpWallLimit QOSMaxCpuPerJobLimit QOSMaxCpuPerNode
QOSMaxCpuPerUserLimit QOSMaxJobsPerUserLimit QOSMaxNodePerUserLimit QOSMaxSubmitJobPerUserLimit
QOSMaxWallDurationPerJobLimit QOSMinCpuNotSatisfied QOSGrpMemoryMinutes QOSMaxMemoryPerUser
QOSMinMemory QOSMaxGRESPerJob QOSMaxGRESPerNode QOSMaxGRESPerUser QOSMaxGRESMinutesPerJob QOSMinGRES
QOSMaxLicensePerUser QOSMaxBBPerUser QOSMaxBillingPerUser QOSMinBilling MaxCpuPerAccount
MaxGRESPerAccount MaxJobsPerAccount MaxSubmitJobsPerAccount MaxMemoryPerAccount
MaxGRESRunMinsPerUser MaxCpuRunMinsPerAccount""")


@pytest.mark.parametrize("name", SACCT_STATES + SQUEUE_STATES)
def test_every_state_of_the_manual_is_known(name: str) -> None:
    state, _ = state_of(name)
    assert state is not State.UNKNOWN


@pytest.mark.skipif(shutil.which("man") is None, reason="no man here")
@pytest.mark.parametrize("command", ["sacct", "squeue"])
def test_the_manual_that_is_installed_here_names_no_other(command: str) -> None:
    done = subprocess.run(["man", command], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no manual page of {command} here")
    section = re.split(r"\nJOB STATE CODES\n", done.stdout)[-1].split("\nDEFAULT TIME")[0]
    names = re.findall(r"(?m)^ {7}[A-Z]{1,3} +([A-Z_]{4,})", section.split("\nPERFORMANCE")[0])
    assert len(names) >= len(SACCT_STATES)
    assert set(names) <= set(STATES)


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("CANCELLED by 1000", State.CANCELLED),
        ("OUT_OF_ME+", State.FAILED),
        ("CANCELLED+", State.CANCELLED),
        ("running", State.RUNNING),
        ("RE+", State.UNKNOWN),
        ("REQUEUE_+", State.UNKNOWN),
        ("SOMETHING_NEW", State.UNKNOWN),
        ("", State.UNKNOWN),
    ],
)
def test_states_as_commands_print_them(said: str, state: State) -> None:
    assert state_of(said)[0] is state


@given(st.text())
def test_no_state_is_an_error(said: str) -> None:
    state, meaning = state_of(said)
    assert state is not State.UNKNOWN or said.__repr__() in meaning


def test_what_ended_badly_says_why() -> None:
    """FAILED alone has nothing to say: exit code and reason do."""
    silent = {n for n, (state, words) in STATES.items() if state is State.FAILED and not words}
    assert silent == {"FAILED"}


@pytest.mark.parametrize("code", WHOLE + LIMITS)
def test_every_reason_of_the_manual_is_explained(code: str) -> None:
    words = explain(code)
    assert words.startswith(f"{code}: ")
    assert len(words) > len(code) + 10


def test_the_table_has_no_reason_that_a_limit_would_explain_already() -> None:
    assert set(REASONS) - set(WHOLE) == {"Nodes", "job_requeued_in_held_state", "launch"}


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [
        ("QOSMaxGRESPerUser", "your jobs hold all the GPUs (GRES) that the QOS allows a user"),
        ("QOSMaxJobsPerUserLimit", "as many of your jobs run as the QOS allows at once"),
        ("AssocGrpJobsLimit", "as many of all its jobs run as the account allows at once"),
        ("AssocGrpCPUMinutesLimit", "the account has used up its budget of CPUs times minutes"),
        ("AssocGrpGRESRunMinutes", "running jobs have booked all the GPUs (GRES) times minutes"),
        ("QOSMaxWallDurationPerJobLimit", "shorten resources.time_limit"),
        ("AssocMaxMemPerNode", "more memory than the account allows a node of a job"),
        ("QOSMaxCpuMinutesPerJobLimit", "more CPUs times minutes than the QOS allows a job"),
        ("QOSMinGRES", "the QOS wants jobs with more GPUs (GRES)"),
        ("ReqNodeNotAvail, UnavailableNodes:node[1-2]", "UnavailableNodes:node[1-2]: nodes that"),
        ("(Resources)", "waits for nodes"),
        ("RaisedSignal:9(Killed)", "a signal ended"),
    ],
)
def test_reasons_in_plain_words(reason: str, meaning: str) -> None:
    assert meaning in explain(reason)


@pytest.mark.parametrize("reason", SILENT)
def test_no_reason_is_no_words(reason: str) -> None:
    assert explain(reason) == ""


@given(st.text(min_size=1))
def test_an_unknown_reason_is_shown_as_it_is(reason: str) -> None:
    assert explain(reason).startswith(reason) or reason in SILENT
    assert explain(f"~{reason}") == f"~{reason}"


def test_held_is_what_a_person_must_release() -> None:
    assert is_held("JobHeldUser")
    assert is_held("launch failed requeued held")
    assert is_held("job_requeued_in_held_state")
    assert not is_held("BeginTime")


def test_the_page_has_the_whole_table(root: Path) -> None:
    page = (root / "docs/slurm-states.md").read_text()
    rows = re.findall(r"(?m)^\| `(\w+)` \| (\w+) \| (.*) \|$", page)
    assert rows == [(name, state.value, words) for name, (state, words) in sorted(STATES.items())]
