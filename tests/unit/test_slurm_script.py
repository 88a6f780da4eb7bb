"""The batch script under real bash, with programs in Slurm's place that note what they get."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.directives import time_words
from orchestrator.plan import LaunchPlan, make_plan
from orchestrator.profiles import ClusterProfile
from orchestrator.render import render
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job
from trainer import batch

JOB = {
    "name": "script",
    "resources": {"nodes": 2, "ranks_per_node": 2},
    "train": {
        "model": {"preset": "nano"},
        "data": {"synthetic": {"samples": 64}},
        "steps": 5,
    },
}
RECORD = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["RECORD"], "a") as file:
    file.write(json.dumps([sys.argv, dict(os.environ)]) + "\\n")
"""
STUBS = {
    "srun": RECORD + 'sys.exit(int(os.environ.get("SRUN_CODE", "0")))\n',
    "scancel": RECORD,
    "module": RECORD,
    "sleep": RECORD,
    "scontrol": RECORD
    + 'if sys.argv[1:3] == ["show", "hostnames"]: print("localhost\\nlocalhost")\n'
    + 'if sys.argv[1:3] == ["show", "job"]: print(os.environ.get("SHOWN", ""))\n'
    + 'sys.exit(sys.argv[1] == "requeue" and "REFUSED" in os.environ)\n',
}
# The real one, but for the address: no other node is here to find it by.
BATCH = f"""import runpy, sys
if sys.argv[1] == "head":
    print("10.0.0.1 23456")
else:
    runpy.run_path({batch.__file__!r}, run_name="__main__")
"""


Call = tuple[list[str], dict[str, str]]
"""Arguments and environment of a program."""


def shown(restarts: str) -> str:
    """Of `scontrol show job` what the script reads, and what it must not take for it."""
    return f"""JobId=17 JobName=script
   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0
   Comment=Requeue=1 Restarts=7 BatchFlag=1"""


class Script:
    """A rendered job.sh in a folder with stubs for Slurm's programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        for name, text in STUBS.items():
            path = folder / "bin" / name
            path.write_text(text)
            path.chmod(0o755)
        self.run_dir = folder / "run dir's $(touch gone)"
        (self.run_dir / "launch").mkdir(parents=True)
        (self.run_dir / "launch" / "batch.py").write_text(BATCH)

    def run(self, text: str, **environ: str) -> list[Call]:
        """What each stub was called with: its arguments and its environment."""
        record = self.folder / "record"
        record.unlink(missing_ok=True)
        (self.run_dir / "slurm-requeues").unlink(missing_ok=True)
        script = self.folder / "job.sh"
        script.write_text(text, encoding="utf-8")
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "RECORD": str(record),
            "SHOWN": shown("0"),
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NODELIST": "node[1-2]",
            **environ,
        }
        self.code = subprocess.run(
            ["bash", str(script), str(self.run_dir), str(self.folder)],
            cwd=self.folder, env=environment, capture_output=True, timeout=60, check=False,
        ).returncode  # fmt: skip
        return [tuple(json.loads(line)) for line in record.read_text().splitlines()]


def rendered(job: Mapping[str, object], **slurm: object) -> str:
    return render(plan_of(job, **slurm)).files["job.sh"]


def plan_of(job: Mapping[str, object], **slurm: object) -> LaunchPlan:
    profile = ClusterProfile(name="dev", target="slurm", slurm={"python": sys.executable, **slurm})
    document = parse_document(json.dumps(job).encode(), "job.yaml")
    job_file = resolve_job(document, profile)
    return make_plan(job_file.spec, profile, job_file.elements)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    return Script(tmp_path_factory.mktemp("it's a $(touch gone) folder"))


def only(calls: list[Call], name: str) -> Call:
    (call,) = [call for call in calls if Path(call[0][0]).name == name]
    return call


VALUES = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40
) | st.sampled_from(["a b", "a'; touch gone; '", "$(touch gone)", "`touch gone`", "k=v,w", "a\nb"])


@settings(max_examples=40, deadline=None)
@given(value=VALUES)
@pytest.mark.case("L22", "L23")
def test_values_of_the_environment_arrive_unchanged(script: Script, value: str) -> None:
    plan = replace(plan_of(JOB), env=(("VALUE", value),))
    calls = script.run(render(plan).files["job.sh"])
    _, environ = only(calls, "srun")
    assert environ["VALUE"] == value
    assert not list(script.folder.rglob("gone"))


LINES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)


@settings(max_examples=40, deadline=None)
@given(comment=LINES, option=LINES)
def test_values_of_directives_stay_one_word(comment: str, option: str) -> None:
    """bash reads the words of a directive as sbatch does, but for backslashes, which sbatch wants
    twice (tests/slurm/test_carried.py); each value is one of them."""
    text = rendered(JOB, comment=comment, options={"licenses": option})
    lines = [line.removeprefix("#SBATCH ") for line in text.splitlines() if "#SBATCH" in line]
    (shown,) = [line for line in lines if line.startswith("--comment=")]
    (other,) = [line for line in lines if line.startswith("--licenses=")]
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {shown} {other}"], capture_output=True, check=True
    ).stdout.split(b"\0")
    expected = [f"--comment={comment}", f"--licenses={option}"]
    assert [word.decode().replace("\\\\", "\\") for word in words[:-1]] == expected


@settings(max_examples=20, deadline=None)
@given(module=LINES, image=LINES, mount=LINES.map(lambda text: re.sub("[,:]", "", text)))
def test_facts_of_the_site_stay_one_word(
    script: Script, module: str, image: str, mount: str
) -> None:
    mount = f"/a{mount}:/b{mount}"
    container = {"runtime": "pyxis", "image": image, "mounts": [mount]}
    calls = script.run(rendered(JOB, modules=[module], container=container))
    argv, _ = only(calls, "srun")
    assert f"--container-image={image}" in argv
    (mounts,) = [word for word in argv if word.startswith("--container-mounts=")]
    assert mounts.endswith(f",{mount}")
    assert only(calls, "module")[0][1:] == ["load", module]
    assert not list(script.folder.rglob("gone"))


# A colon would split the PATH with the stubs.
FOLDERS = st.text(
    st.characters(exclude_characters="\0/:", exclude_categories=["Cs"]), min_size=1, max_size=40
).map(lambda name: f"_{name}")


@settings(max_examples=20, deadline=None)
@given(name=FOLDERS)
def test_folders_arrive_unchanged(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    script = Script(tmp_path_factory.mktemp("folder") / name)
    argv, _ = only(script.run(rendered(JOB)), "srun")
    assert argv[argv.index("--run-dir") + 1] == str(script.run_dir)
    assert argv[argv.index("--workdir") + 1] == str(script.folder)


@pytest.mark.case("L07", "L08", "L24")
def test_the_task_gets_folders_rank_source_and_cores(script: Script) -> None:
    argv, environ = only(script.run(rendered(JOB)), "srun")
    assert "--cpus-per-task=2" in argv
    assert argv[argv.index("--run-dir") + 1] == str(script.run_dir)
    assert argv[argv.index("--node-rank-from") + 1] == "SLURM_NODEID"
    assert argv[argv.index("--head") + 1] == "10.0.0.1"
    assert "SRUN_CPUS_PER_TASK" not in environ
    assert script.code == 0


@pytest.mark.case("L09")
def test_what_the_submitting_shell_left_behind_is_dropped(script: Script) -> None:
    left = {"PET_NNODES": "7", "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "y"}
    left |= {"SLURM_EXPORT_ENV": "NONE", "SLURM_CPUS_PER_TASK": "3"}
    _, environ = only(script.run(rendered(JOB), **left), "srun")
    assert not set(left) & set(environ)


def test_the_exit_code_is_the_trainings(script: Script) -> None:
    script.run(rendered(JOB), SRUN_CODE="78")
    assert script.code == 78


def test_srun_starts_one_task_a_rank_where_it_is_the_launcher(script: Script) -> None:
    argv, _ = only(script.run(rendered({**JOB, "launcher": "srun"})), "srun")
    assert "--ntasks-per-node=2" in argv
    assert "--cpus-per-task=1" in argv
    assert argv[argv.index("--node-rank-from") + 1] == "SLURM_PROCID"
    assert "--direct" in argv


@pytest.mark.parametrize("runtime", ["pyxis", "apptainer"])
@pytest.mark.case("L30")
def test_a_container_gets_folders_and_every_variable_that_we_set(
    tmp_path: Path, runtime: str
) -> None:
    script = Script(tmp_path / "plain")
    container = {"runtime": runtime, "image": "registry#image:1", "mounts": ["/data:/data:ro"]}
    text = rendered({**JOB, "env": {"SEED_FILE": "x y"}}, container=container)
    argv, environ = only(script.run(text), "srun")
    mounts = f"{script.run_dir}:{script.run_dir},{script.folder}:{script.folder},/data:/data:ro"
    if runtime == "pyxis":
        assert f"--container-mounts={mounts}" in argv
        (keys,) = [word for word in argv if word.startswith("--container-env=")]
        assert keys == "--container-env=OMP_NUM_THREADS,PYTHONUNBUFFERED,SEED_FILE"
    else:
        start = argv.index("apptainer")
        assert argv[start : start + 5] == [
            "apptainer",
            "exec",
            "--bind",
            mounts,
            "registry#image:1",
        ]
        assert environ["APPTAINERENV_SEED_FILE"] == "x y"


def test_a_folder_that_would_split_the_mounts_is_refused(tmp_path: Path) -> None:
    script = Script(tmp_path / "a,b")
    text = rendered(JOB, container={"runtime": "pyxis", "image": "i"})
    with pytest.raises(ValueError, match="not enough values"):
        only(script.run(text), "srun")
    assert script.code == 78


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(60, "0-00:01:00"), (3661, "0-01:01:01"), (90000, "1-01:00:00")],
)
def test_time_words(seconds: int, words: str) -> None:
    assert time_words(seconds) == words


ELASTIC = {**JOB, "resources": {"nodes": {"min": 1, "max": 4}, "ranks_per_node": 2}}


@pytest.mark.parametrize(("given", "used"), [(1, 1), (2, 2), (3, 2), (4, 4)])
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_of_the_nodes_given_as_many_start_as_keep_the_batch(
    script: Script, launcher: str, given: int, used: int
) -> None:
    text = rendered({**ELASTIC, "launcher": launcher})
    assert "#SBATCH --nodes=1-4\n#SBATCH --cpus-per-task=2\n" in text
    assert "#SBATCH --ntasks" not in text  # Slurm would give no more nodes than these tasks
    calls = script.run(text, SLURM_JOB_NUM_NODES=str(given))
    argv, _ = only(calls, "srun")
    each = 2 if launcher == "srun" else 1
    assert {f"--nodes={used}", f"--ntasks={used * each}", "--relative=0"} <= set(argv)
    assert argv[argv.index("--nnodes") + 1] == str(used * each)
