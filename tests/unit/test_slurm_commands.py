"""What Slurm's commands answer is read as it is meant, or left out; never an exception."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.backends import slurm_commands
from orchestrator.backends.site import Completed, LocalSite, NoAnswer
from orchestrator.backends.slurm_commands import (
    ACCOUNTING_FIELDS,
    QUEUE_FIELDS,
    SEPARATOR,
    Job,
    exit_code,
    expand,
    job_id,
    parse_accounting,
    parse_queue,
    ranges,
)
from orchestrator.errors import BackendError

SITE = LocalSite()
TEXT = st.text(st.characters(exclude_characters="\x1f", exclude_categories=["Cs"])).map(str.strip)


def row(*cells: str) -> str:
    return "".join(f"{cell:<20}{SEPARATOR}" for cell in cells) + "\n"


def test_squeue_rows() -> None:
    text = row("12", "demo", "RUNNING", "None", "2", "0", "2026-01-02T03:04:05")
    text += row("13_4", "sweep", "FAILED", "NonZeroExitCode", "0", "768", "N/A")
    text += row("14", "demo", "FAILED", "RaisedSignal:9(Killed)", "0", "0:9", "N/A")
    assert parse_queue(text) == [
        Job("12", "demo", "RUNNING", "None", 2, 0, "2026-01-02T03:04:05"),
        Job("13_4", "sweep", "FAILED", "NonZeroExitCode", 0, 3, ""),
        Job("14", "demo", "FAILED", "RaisedSignal:9(Killed)", 0, 137, ""),
    ]


def test_squeue_of_one_of_several_clusters_has_a_heading() -> None:
    text = "CLUSTER: big\n" + row("12", "demo", "PENDING", "Priority", "0", "0", "N/A")
    assert parse_queue(text) == [Job("12", "demo", "PENDING", "Priority")]


@given(st.lists(st.tuples(TEXT, TEXT, TEXT)))
def test_squeue_rows_with_any_text_in_them(rows: list[tuple[str, str, str]]) -> None:
    text = "".join(
        row(str(n), name, "PENDING", reason, "1", "9", "N/A", path)
        for n, (name, reason, path) in enumerate(rows)
    )
    assert parse_queue(text, len(QUEUE_FIELDS) + 1) == [
        Job(str(n), name, "PENDING", reason, 1, 137, "", path)
        for n, (name, reason, path) in enumerate(rows)
    ]


@given(st.text(st.sampled_from("12_|\x1f \n[]ab:"), max_size=200))
def test_no_answer_is_an_error(text: str) -> None:
    for job in [*parse_queue(text), *parse_accounting(text)]:
        assert expand(job.id) == [job.id]


def test_sacct_rows() -> None:
    text = (
        "12|de|mo|CANCELLED by 0|None|0:15\n13_1|sweep|COMPLETED|None|0:0\n"
        "13_[2-3%1]|sweep|PENDING|JobArrayTaskLimit|0:0\n14|x|FAILED|None|3:0\ntoo|few\n\n"
    )
    assert len(text.splitlines()[1].split("|")) == len(ACCOUNTING_FIELDS)
    assert parse_accounting(text) == [
        Job("12", "de|mo", "CANCELLED by 0", "None", code=143),
        Job("13_1", "sweep", "COMPLETED", "None"),
        Job("13_2", "sweep", "PENDING", "JobArrayTaskLimit"),
        Job("13_3", "sweep", "PENDING", "JobArrayTaskLimit"),
        Job("14", "x", "FAILED", "None", code=3),
    ]


@pytest.mark.parametrize(
    ("id_", "ids"),
    [
        ("12", ["12"]),
        ("12_7", ["12_7"]),
        ("12_[3]", ["12_3"]),
        ("12_[0-2,7%2]", ["12_0", "12_1", "12_2", "12_7"]),
        ("12_[0-6:3]", ["12_0", "12_3", "12_6"]),
        ("12_[0-100000000]", []),
        ("12_[0-99999,0-99999]", []),
        ("12_[a]", []),
        ("12+1", []),
        ("12.batch", []),
        ("", []),
    ],
)
def test_array_ids(id_: str, ids: list[str]) -> None:
    assert expand(id_) == ids


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 20)), min_size=1))
def test_array_ids_of_many_ranges(ranges: list[tuple[int, int]]) -> None:
    text = ",".join(f"{first}-{first + more}" for first, more in ranges)
    wanted = [f"5_{i}" for first, more in ranges for i in range(first, first + more + 1)]
    assert expand(f"5_[{text}]") == expand(f"5_[{text}%3]") == wanted


@given(st.sets(st.integers(0, 99)).map(sorted))
def test_numbers_as_an_array_of_sbatch(numbers: list[int]) -> None:
    text = ranges(numbers)
    if numbers:
        assert expand(f"5_[{text}]") == [f"5_{number}" for number in numbers]
    assert ranges([3, 7, 8, 9]) == "3,7-9"


@pytest.mark.parametrize(
    ("answer", "ids"),
    [
        ("12\n", ("12", "")),
        ("12;big\n", ("12", "big")),
        ("the site greets you\n12\n", ("12", "")),
        ("Submitted batch job 12\n", None),
        ("", None),
    ],
)
def test_the_answer_of_sbatch(answer: str, ids: tuple[str, str] | None) -> None:
    assert job_id(answer) == ids


@given(st.integers(0, 255), st.sampled_from([signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV]))
def test_a_wait_status_is_an_exit_code_as_shells_have_it(code: int, number: int) -> None:
    assert exit_code(code << 8) == code
    assert exit_code(number) == 128 + number


def clients(folder: Path, **scripts: str) -> LocalSite:
    """A site whose only Slurm commands are these shell scripts."""
    for name in ("sh", "env", "sed", "sleep"):
        (folder / name).symlink_to(shutil.which(name) or "/missing")
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return LocalSite({"PATH": str(folder)})


def test_a_machine_without_slurm_says_so(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="this machine: no command 'squeue'"):
        slurm_commands.queue(clients(tmp_path), ["12"])


def test_a_failure_has_slurms_words_and_what_to_do() -> None:
    said = "sbatch: error: Batch job submission failed: Invalid qos specification\n" * 2
    error = slurm_commands.failure(SITE, Completed(1, b"", said), "Slurm refused demo")
    first, fix = str(error).splitlines()
    assert first.endswith("Slurm refused demo: Batch job submission failed: Invalid qos "
                          "specification")  # fmt: skip
    assert fix.startswith("  fix: correct the qos in the profile")


def test_a_failure_without_words_has_its_code() -> None:
    error = slurm_commands.failure(SITE, Completed(7, b"", ""), "x")
    assert str(error) == "this machine: x: the command left with 7"


@pytest.mark.parametrize("answer", slurm_commands.ADVICE)
def test_advice_is_found_in_any_case(answer: str) -> None:
    error = slurm_commands.failure(SITE, Completed(1, b"", f"sbatch: {answer.title()}!"), "x")
    assert "  fix: " in str(error)


OUTER = {
    "SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_CLUSTERS": "x", "SLURM_TIME_FORMAT": "%s",
    "SBATCH_PARTITION": "nope", "SRUN_CPUS_PER_TASK": "2", "SQUEUE_FORMAT": "%i",
    "SACCT_FORMAT": "x", "SCANCEL_STATE": "x", "PMI_RANK": "1", "PMIX_RANK": "1",
    "MASTER_ADDR": "x", "MASTER_PORT": "1", "RANK": "3", "WORLD_SIZE": "4", "PET_NNODES": "2",
    "TORCHELASTIC_RUN_ID": "x", "ORCHESTRATE_ATTEMPT": "3", "CUDA_VISIBLE_DEVICES": "7",
}  # fmt: skip
KEPT = {
    "SLURM_CONF": "/etc/x y.conf", "SLURM_JWT": "t", "HOME": "/h", "MY_RANK": "1",
    "LINES_": "a\nSLURM_CONF=b\nHOME=c\n$(exit 3)`exit 4`", "X": "'\"",
}  # fmt: skip


def test_what_belongs_to_an_outer_job_is_kept_from_slurms_commands() -> None:
    """The arguments and all else reach the command unchanged."""
    environ = {"PATH": os.environ["PATH"], **OUTER, **KEPT}
    done = slurm_commands.call(LocalSite(environ), "env", "-0")
    seen = dict(entry.split("=", 1) for entry in done.stdout.split("\0")[:-1])
    assert {k: v for k, v in seen.items() if k in OUTER} == {}
    assert {k: seen.get(k) for k in KEPT} == KEPT
    arguments = ["a b", "'", '"', "$(x)", "`y`", "\n", "", "*"]
    done = slurm_commands.call(SITE, "printf", "%s\\0", *arguments)
    assert done.stdout.split("\0")[:-1] == arguments


def test_the_manuals_environment_variables_are_all_covered() -> None:
    """sbatch takes SBATCH_* and a few SLURM_*; the scrub goes by their first letters."""
    done = subprocess.run(["man", "sbatch"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no manual page of sbatch here")
    section = done.stdout.split("INPUT ENVIRONMENT VARIABLES")[-1].split("OUTPUT ENV")[0]
    names = [line.split()[0] for line in section.splitlines() if line.startswith(" " * 7 + "S")]
    assert "SBATCH_PARTITION" in names
    assert all(name.startswith(("SBATCH_", "SLURM_")) for name in names)


def test_a_disabled_accounting_is_no_error(tmp_path: Path) -> None:
    words = "echo Slurm accounting storage is disabled >&2; exit 1"
    site = clients(tmp_path, sacct=words, squeue="echo slurm_load_jobs error: boom >&2; exit 1")
    assert slurm_commands.accounting(site, ["12"]) == []
    with pytest.raises(NoAnswer, match="cannot ask for jobs: boom"):
        slurm_commands.queue(site, ["12"])
