"""What submitit is given and writes: the real submitit, with programs in Slurm's place."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import slurm_submit, submitit_submit
from orchestrator.backends.base import Submission
from orchestrator.backends.site import LocalSite
from orchestrator.backends.slurm import SlurmBackend
from orchestrator.errors import BackendError, FaultsError, UserError
from orchestrator.plan import LaunchPlan, make_plan
from orchestrator.profiles import ClusterProfile
from orchestrator.render import render
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job

pytest.importorskip("submitit")

JOB: dict[str, Any] = {
    "name": "by-submitit",
    "launcher": "submitit",
    "resources": {"nodes": 2, "ranks_per_node": 2, "time_limit": "570s", "memory": "1GiB"},
    "train": {"model": {"preset": "nano"}, "data": {"synthetic": {"samples": 64}}, "steps": 5},
}
RECORD = f"""#!{sys.executable}
import json, os, pathlib, sys
with open(os.environ["RECORD"], "a") as file:
    file.write(json.dumps([sys.argv, dict(os.environ), os.getcwd()]) + "\\n")
"""
# squeue knows no job; sbatch takes each.
STUBS = {
    "sbatch": RECORD + 'print("Submitted batch job 17")\n',
    "squeue": RECORD,
    "scancel": RECORD,
    "srun": RECORD + 'sys.exit(int(os.environ.get("SRUN_CODE", "0")))\n',
    "scontrol": RECORD + 'if "hostnames" in sys.argv: print("localhost\\nlocalhost")\n'
    'else: print("   Requeue=1 Restarts=0 BatchFlag=1")\n',
}
HOSTILE = 'a b\'c "d" $(touch gone) `touch gone` e=f,g \\h %j ü'
Call = tuple[list[str], dict[str, str], str]


def plan_of(job: Mapping[str, object] = JOB, ssh: str | None = None, **slurm: object) -> LaunchPlan:
    profile = ClusterProfile(
        name="dev", target="slurm", ssh=ssh, slurm={"python": sys.executable, **slurm}
    )
    document = parse_document(json.dumps(job).encode(), "job.yaml")
    return make_plan(resolve_job(document, profile).spec, profile)


@dataclass
class Place:
    """A folder with programs in Slurm's place, which note what they are called with."""

    folder: Path
    environ: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(parents=True)
        for name, text in STUBS.items():
            path = self.folder / "bin" / name
            path.write_text(text)
            path.chmod(0o755)
        search = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        self.environ = {**os.environ, "PATH": search, "RECORD": str(self.folder / "record")}

    @property
    def run_dir(self) -> Path:
        return self.folder / "r u'n\"s $(touch gone)" / str(JOB["name"])

    def submit(self, plan: LaunchPlan, run_dir: Path | None = None) -> Submission:
        return SlurmBackend(LocalSite(self.environ)).submit(
            render(plan),
            runs_root=(run_dir or self.run_dir).parent,
            workdir=self.folder,
            job_text="",
        )

    def script(self) -> str:
        """What submitit has given to sbatch."""
        return (self.run_dir / "submitit/17_submission.sh").read_text()

    def run_script(self, code: int = 0) -> int:
        """Run that as the job would; srun leaves with this code. The job's exit code."""
        of_job = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "node[1-2]", "SRUN_CODE": str(code)}
        batch = "print('10.0.0.1 23456' if sys.argv[1] == 'head' else f'end {sys.argv[4]}')"
        (self.run_dir / "launch/batch.py").write_text(f"import sys\n{batch}\n")
        argv = ["bash", str(self.run_dir / "submitit/17_submission.sh")]
        return subprocess.run(
            argv, cwd=self.run_dir, env={**self.environ, **of_job}, timeout=60, check=False
        ).returncode

    def call(self, name: str) -> Call:
        """The one call of a program."""
        lines = (self.folder / "record").read_text().splitlines()
        (call,) = [c for c in map(json.loads, lines) if Path(c[0][0]).name == name]
        return tuple(call)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "it's a $(touch gone) folder")


def words(script: str) -> list[str]:
    """The options in a script's directives, read by a shell."""
    lines = [ln.removeprefix("#SBATCH ") for ln in script.splitlines() if ln.startswith("#SBATCH ")]
    return [word for line in lines for word in shlex.split(line)]


def test_the_script_has_each_option_once_and_as_one_word(place: Place) -> None:
    options = {"nice": None, "licenses": HOSTILE}
    job = {**JOB, "resources": {**JOB["resources"], "gpus_per_node": 2}}
    submission = place.submit(
        plan_of(job, options=options, comment=HOSTILE, account="007", exclusive=True, gpus="gres")
    )
    assert submission.handle.ids["job"] == "17"
    found = words(place.script())
    names = [word.partition("=")[0] for word in found]
    assert len(set(names)) == len(names)
    log = f"{place.run_dir}/logs/slurm-%j.log"
    doubled = HOSTILE.replace("\\", "\\\\")  # sbatch reads an escape even in quotes
    expected = {
        "--account=007", "--chdir=" + str(place.run_dir), f"--comment={doubled}", "--exclusive",
        "--cpus-per-task=2", "--dependency=singleton", "--gres=gpu:2", "--job-name=by-submitit",
        f"--licenses={doubled}", "--mem=1024M", "--nice", "--nodes=2", "--ntasks-per-node=1",
        f"--output={log}", f"--error={log}", "--open-mode=append", "--requeue",
        "--signal=USR2@285", "--time=10", "--wckey=submitit",
    }  # fmt: skip
    assert set(found) == expected
    assert not list(place.folder.rglob("gone"))


def test_what_is_pickled_is_a_name_and_two_paths(place: Place) -> None:
    place.submit(plan_of())
    data = (place.run_dir / "submitit/17_submitted.pkl").read_bytes()
    assert b"submitit_job" in data
    assert b"__main__" not in data
    assert len(data) < 1000


@pytest.mark.parametrize("value", [HOSTILE, "a\nb", ""])
def test_tasks_get_the_environment_and_where_to_meet(place: Place, value: str) -> None:
    plan = replace(plan_of(setup=["ONCE=1"]), env=(("VALUE", value),), gpus_per_node=2)
    place.submit(plan)
    assert place.run_script() == 0
    argv, environ, folder = place.call("srun")
    assert environ["VALUE"] == value
    meeting = {name: environ[f"ORCHESTRATE_{name}"] for name in ("ID", "HEAD", "PORT", "GPUS")}
    assert meeting == {"ID": "17.0", "HEAD": "10.0.0.1", "PORT": "23456", "GPUS": "2"}
    assert folder == str(place.run_dir / "launch")
    assert {"--cpus-per-task=2", "--ntasks=2", "--kill-on-bad-exit=0"} <= set(argv)
    assert argv[argv.index("-m") + 1] == "submitit.core._submit"
    assert not list(place.folder.rglob("gone"))


@pytest.mark.parametrize("code", [0, 1, 75, 78])
def test_the_jobs_code_is_that_of_the_tasks(place: Place, code: int) -> None:
    place.submit(plan_of(cleanup=["touch cleaned; (exit 5)"]))
    assert place.run_script(code) == code
    assert (place.run_dir / "launch/cleaned").exists()


def test_a_cancelled_run_is_cancelled_in_slurm_too(place: Place) -> None:
    place.submit(plan_of())
    (place.run_dir / "cancel").write_text("17\n")
    assert place.run_script(75) == 75
    assert place.call("scancel")[0][1:] == ["17"]


def test_the_options_that_sbatch_is_asked_about(place: Place) -> None:
    backend = SlurmBackend(LocalSite(place.environ))
    backend.online_check(render(plan_of(partition="a b")))
    argv = place.call("sbatch")[0][1:]
    assert {"--test-only", "--partition=a b", "--nodes=2", "--time=10", "--requeue"} <= set(argv)


@pytest.mark.parametrize("name", ["50%j", "a\nb"])
def test_a_folder_that_cannot_be_quoted_is_refused(place: Place, name: str) -> None:
    with pytest.raises(UserError, match="choose a runs root without one"):
        place.submit(plan_of(), place.folder / name / JOB["name"])
    assert not (place.folder / "record").exists()


def test_what_sbatch_says_is_told(place: Place) -> None:
    (place.folder / "bin/sbatch").write_text("#!/bin/sh\necho 'invalid partition' >&2; exit 1\n")
    with pytest.raises(BackendError, match=r"invalid partition\n  fix: correct the partition"):
        place.submit(plan_of())


def test_a_missing_submitit_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(BackendError, match=r"pip install 'orchestrate-training\[submitit\]'"):
        submitit_submit.check(LocalSite(), tmp_path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: plan_of({**JOB, "resources": {"nodes": 2}}), "add resources.time_limit"),
        (lambda: plan_of(container={"runtime": "pyxis", "image": "i"}), "in no container"),
        (lambda: plan_of(options={"clusters": "a,b"}), "which of several clusters"),
        (lambda: plan_of(ssh="login"), "behind ssh: login"),
        (lambda: plan_of({**JOB, "sweep": {"list": [{"train.seed": 1}]}}), "no sweep"),
    ],
)
def test_what_does_not_go_by_submitit_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises((FaultsError, UserError)) as error:
        make()
    assert words in str(error.value)


def test_the_launch_folder_holds_what_the_job_imports(place: Place) -> None:
    place.submit(plan_of())
    names = {path.name for path in (place.run_dir / "launch").iterdir()} - {"__pycache__"}
    assert names == {*slurm_submit.LAUNCH_FILES, submitit_submit.PROGRAM}
