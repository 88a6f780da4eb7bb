"""Whole jobs on the local backend that are hit in the middle: what comes out is what an undisturbed
run gives, and nothing of a lost attempt is left running."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from running import PROGRAMS, losses, read, state_sha256, wait_until

pytest.importorskip("torch")

from orchestrator.backends import local
from orchestrator.backends.base import Handle, State, Status
from orchestrator.backends.processes import descendants
from orchestrator.backends.record import Record
from orchestrator.contract import RunPaths
from orchestrator.plan import make_plan
from orchestrator.profiles import find_profiles
from orchestrator.render import render
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
BACKEND = local.BACKEND
JOB = """
name: faults
resources: {nodes: 2, ranks_per_node: 2}
parallelism: {ddp: {bucket_cap_mb: 0.02}}
train:
  model: {factory: "acting:build", context: 32, args: {width: 32, context: 32}}
  data: {python_docs: true}
  batch: {micro: 2}
  schedule: {warmup_steps: 2}
  evaluation: {batches: 1}
  logging: {every: 2, tensorboard: false}
  steps: 12
checkpoint: {every: 4}
timeouts: {step: 60s, shutdown: 60s}
"""
RUN_TIMEOUT_S = 300.0


@dataclass
class Job:
    """One run of the job in a folder of its own."""

    folder: Path
    act: dict[str, object] | None = None
    text: str = JOB
    handles: list[Handle] = field(default_factory=list)

    def submit(self) -> Handle:
        self.folder.mkdir(exist_ok=True)
        shutil.copy(PROGRAMS / "acting.py", self.folder)
        if self.act:
            (self.folder / "act.json").write_text(json.dumps([{"attempt": 1, **self.act}]))
        document = parse_document(self.text.encode(), "job.yaml")
        profile = find_profiles(None, {}, self.folder).choose("local")
        rendered = render(make_plan(resolve_job(document, profile, []).spec, profile))
        submission = BACKEND.submit(
            rendered, runs_root=self.folder / "runs", workdir=self.folder, job_text=self.text
        )
        assert submission.started
        self.handles.append(submission.handle)
        return submission.handle

    def run(self) -> Status:
        return self.wait(self.submit())

    def wait(self, handle: Handle) -> Status:
        """The status at the end; everything that an attempt started is gone before the next."""
        wait_until(lambda: self.status(handle).state.is_final, handle.run, RUN_TIMEOUT_S)
        return self.status(handle)

    def status(self, handle: Handle) -> Status:
        return BACKEND.status([handle])[0]

    def codes(self) -> list[int]:
        record = Record.read(self.run_dir)
        assert record is not None
        return [ended.code for ended in record.ended]

    @property
    def run_dir(self) -> Path:
        return self.folder / "runs" / "faults"

    def logs(self) -> str:
        return "\n".join(p.read_text()[-3000:] for p in sorted(self.run_dir.glob("logs/*.log")))

    def close(self) -> None:
        for handle in self.handles:
            if (record := Record.read(handle.run_dir)) and record.is_alive:
                BACKEND.cancel(handle, now=True)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The run that nothing happens to."""
    job = Job(tmp_path_factory.mktemp("straight"))
    assert job.run().state is State.DONE, job.logs()
    assert job.codes() == [0]
    assert sorted(losses(job.run_dir)) == list(range(1, 13))
    return job


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path / "work")
    yield made
    made.close()


def assert_equal(job: Job, straight: Job) -> None:
    assert losses(job.run_dir) == losses(straight.run_dir)
    assert state_sha256(job.run_dir) == state_sha256(straight.run_dir)


@pytest.mark.parametrize(
    ("rank", "phase", "step", "act"),
    [
        (2, "step", 6, "kill rank"),
        (3, "step", 6, "kill agent"),
        pytest.param(2, "step", 6, "kill node", marks=pytest.mark.faults),
        pytest.param(0, "save", 8, "kill rank", marks=pytest.mark.faults),
        (0, "publish", 8, "kill node"),
    ],
)
@pytest.mark.case("T21")
def test_after_a_kill_the_end_is_equal(
    job: Job, straight: Job, rank: int, phase: str, step: int, act: str
) -> None:
    job.act = {"rank": rank, "phase": phase, "step": step, "act": act}
    handle = job.submit()
    wait_until(lambda: RunPaths(handle.run_dir).newest_attempt() == 2, "attempt 2", RUN_TIMEOUT_S)
    assert not attempt_processes(handle, 1)
    assert job.wait(handle).state is State.DONE, job.logs()
    assert job.codes() == [1, 0]
    assert_equal(job, straight)


@pytest.mark.parametrize("act", [pytest.param("hang", marks=pytest.mark.faults), "stop"])
def test_after_a_hang_the_end_is_equal(job: Job, straight: Job, act: str) -> None:
    job.text = JOB.replace("step: 60s", "step: 12s")
    job.act = {"rank": 2, "phase": "step", "step": 6, "act": act}
    assert job.run().state is State.DONE, job.logs()
    assert job.codes() == [79, 0]
    assert_equal(job, straight)
    end = read(job.run_dir / "attempts/1/end.json")
    assert (end["code"], end["node"], end["rank"]) == (79, 1, 2)
    assert re.search(
        r"no progress for .* in step 7 .*: rank 2 .* is missing from .* in act$", end["reason"]
    )
    names = [path.name for path in (job.run_dir / "attempts/1/hangs").iterdir()]
    assert {f"rank-0000{r}.{end}" for r in range(4) for end in ("json", "stacks.txt")} <= {*names}


def attempt_processes(handle: Handle, attempt: int) -> list[int]:
    """Processes below the supervisor, and orphans anywhere, that belong to an attempt."""
    marks = {f"ORCHESTRATE_RUN_DIR={handle.run_dir}".encode(),
             f"ORCHESTRATE_ATTEMPT={attempt}".encode()}  # fmt: skip
    found = []
    for process in descendants(1):
        try:
            variables = set(Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"))
        except OSError:
            continue
        if marks <= variables:
            found.append(process.pid)
    return found


def test_after_a_drain_the_end_is_equal(job: Job, straight: Job) -> None:
    job.act = {"rank": 1, "phase": "step", "step": 6, "act": "drain"}
    assert job.run().state is State.DONE, job.logs()
    assert job.codes() == [75, 0]
    assert_equal(job, straight)


@pytest.mark.case("T18")
def test_after_a_drain_before_the_first_step_the_end_is_equal(job: Job, straight: Job) -> None:
    job.act = {"rank": 2, "phase": "build", "step": 0, "act": "drain"}
    assert job.run().state is State.DONE, job.logs()
    assert job.codes() == [75, 0]
    outcome = json.loads(RunPaths(job.run_dir).outcome(1).read_bytes())
    assert (outcome["outcome"], outcome["step"]) == ("drained", 0)
    assert_equal(job, straight)


def test_after_cancel_and_submit_again_the_end_is_equal(job: Job, straight: Job) -> None:
    job.act = {"rank": 3, "phase": "step", "step": 6, "act": "wait"}
    handle = job.submit()
    wait_until((handle.run_dir / "attempts/1/waiting").exists, "step 6", RUN_TIMEOUT_S)
    assert "CANCELLED" in BACKEND.cancel(handle), job.logs()
    assert job.codes() == [75]
    assert not attempt_processes(handle, 1)
    assert job.run().state is State.DONE, job.logs()
    assert RunPaths(handle.run_dir).newest_attempt() == 2
    assert_equal(job, straight)


def test_a_wrong_data_path_is_not_repeated(job: Job) -> None:
    job.text = JOB.replace("python_docs: true", "text: no/such/*.txt")
    final = job.run()
    assert final.state is State.FAILED
    assert "no/such/*.txt" in final.reason
    assert job.codes() == [78]
