"""Conditions under which other launchers have failed, as far as they can be made without a cluster:
processes, what a site wants. The numbers are those of test_cases.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_slurm_script import JOB, RECORD, Script, only, rendered

from running import Nodes
from trainer import node

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root here")


def directives(text: str) -> list[str]:
    lines = text.splitlines()
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]


# --- processes ---------------------------------------------------------------------------------


@NEEDS_ROOT
@pytest.mark.case("L17")
@pytest.mark.parametrize("number", ["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP"])
def test_node_py_as_the_first_process_of_a_container_hears_signals(
    tmp_path: Path, number: str
) -> None:
    """The kernel keeps from process 1 what it has no handler for (pid_namespaces(7))."""
    (tmp_path / "run").mkdir()
    nodes = Nodes(tmp_path / "run", tmp_path, mode="wait", nnodes=1)
    enter = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with nodes.log(0).open("ab") as log:
        nodes.started[0] = subprocess.Popen(
            [*enter, *nodes.command(0)],
            env=os.environ | {"PYTHONPATH": str(Path(nodes.program[1]).parent)},
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        nodes.wait_ready()
        outer = nodes.started[0].pid
        first = int(Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[0])
        os.kill(first, signal.Signals[number])
        assert nodes.codes() == {0: 75}, nodes.all_logs()
    finally:
        nodes.close()


@pytest.mark.case("L17")
def test_no_shell_stands_between_slurm_and_node_py(script: Script) -> None:
    for container in (None, {"runtime": "apptainer", "image": "i"}):
        text = rendered(JOB, **({"container": container} if container else {}))
        argv, _ = only(script.run(text), "srun")
        assert not {"sh", "bash", "-c"} & {Path(word).name for word in argv}


ASKING = f"""#!{sys.executable}
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getppid(), signal.SIG{{name}})
sys.exit(signal.sigtimedwait([signal.SIGUSR1], 30) is None)
"""


@pytest.mark.case("L16")
@pytest.mark.parametrize("name", ["USR1", "USR2", "HUP"])
def test_the_signal_is_the_sites_choice(script: Script, name: str) -> None:
    text = rendered(JOB, signal=name)
    assert any(d.startswith(f"--signal=B:{name}@") for d in directives(text))
    # The script tells its step by USR1, which node.py takes for a request to drain.
    (script.folder / "bin" / "srun").write_text(ASKING.format(name=name))
    script.run(text)
    assert script.code == 0


HOLDER = "4711, 1024 MiB, /usr/bin/left over, again\n"


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that is found first, and what it was asked."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho \"$@\" >{tmp_path}/asked\nprintf '{HOLDER}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return program


@pytest.mark.case("L21")
def test_who_holds_a_gpu_before_the_start_is_said_with_the_nodes_name(
    nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = nvidia_smi.parent.parent / "asked"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    node.report_gpu_holders("host7")
    assert not asked.exists()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    node.report_gpu_holders("host7")
    assert "--id=2,3 --query-compute-apps=pid,used_memory,name" in asked.read_text()
    text = (
        "host7: process 4711 ('/usr/bin/left over, again') is none of this job and holds 1024 MiB"
    )
    assert text in capfd.readouterr().err
    nvidia_smi.write_text("#!/bin/sh\nexit 9\n")
    node.report_gpu_holders("host7")
    assert "nvidia-smi does not say who holds memory" in capfd.readouterr().err


@pytest.mark.case("L21")
@pytest.mark.usefixtures("nvidia_smi")
def test_a_node_reports_it_before_its_ranks_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (tmp_path / "run").mkdir()
    nodes = Nodes(tmp_path / "run", tmp_path)
    nodes.start(0, 1)
    assert nodes.codes() == {0: 0, 1: 0}
    for number in (0, 1):
        assert "process 4711" in nodes.log(number).read_text().splitlines()[0]


# --- what a site wants -------------------------------------------------------------------------


@pytest.mark.case("L26")
def test_a_site_that_refuses_gpu_options_gets_gres_alone() -> None:
    job = {**JOB, "resources": {"nodes": 2, "gpus_per_node": 4, "gpu_type": "a100"}}
    named = [d for d in directives(rendered(job)) if "gpu" in d or "gres" in d]
    assert named == ["--gpus-per-node=a100:4"]
    named = [d for d in directives(rendered(job, gpus="gres")) if "gpu" in d or "gres" in d]
    assert named == ["--gres=gpu:a100:4"]
    named = [d for d in directives(rendered(JOB)) if "gpu" in d or "gres" in d]
    assert named == []


@pytest.mark.case("L09")
def test_a_meeting_place_of_the_sites_set_up_is_not_half_obeyed(script: Script) -> None:
    text = rendered(JOB, setup=["export MASTER_ADDR=other MASTER_PORT=1 PET_NNODES=9"])
    argv, environ = only(script.run(text), "srun")
    assert not {"MASTER_ADDR", "MASTER_PORT", "PET_NNODES"} & set(environ)
    assert argv[argv.index("--head") + 1] == "10.0.0.1"


# pyxis and Apptainer let the image's variables win but for what they are told (NVIDIA/pyxis wiki,
# "Usage"; Apptainer user guide, "Environment and Metadata"). Not tried on the real ones.
IMAGE = (
    RECORD
    + """
names = [word.partition("=")[2].split(",") for word in sys.argv if "--container-env=" in word]
ours = {name: os.environ[name] for name in (names[0] if names else [])}
mark = "APPTAINERENV_"
ours |= {k.removeprefix(mark): v for k, v in os.environ.items() if k.startswith(mark)}
image = {name: "of the image" for name in os.environ["IMAGE_HAS"].split()}
with open(os.environ["RECORD"], "a") as file:
    file.write(json.dumps([["inside"], {**os.environ, **image, **ours}]) + "\\n")
"""
)


@pytest.mark.case("L30")
@pytest.mark.parametrize("runtime", ["pyxis", "apptainer"])
def test_the_images_variables_do_not_beat_the_jobs(tmp_path: Path, runtime: str) -> None:
    script = Script(tmp_path / "plain")
    (script.folder / "bin" / "srun").write_text(IMAGE)
    network = {"interface": "eth0", "env": {"NCCL_DEBUG": "INFO"}}
    job = {**JOB, "env": {"MINE": "a,b c"}, "network": network}
    text = rendered(job, container={"runtime": runtime, "image": "i"})
    lines = [line.split()[1] for line in text.splitlines() if line.startswith("export ")]
    names = {line.partition("=")[0].removeprefix("APPTAINERENV_") for line in lines}
    assert names == {"MINE", "NCCL_DEBUG", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS",
                     "PYTHONUNBUFFERED"}  # fmt: skip
    _, inside = only(script.run(text, IMAGE_HAS=" ".join(names)), "inside")
    assert "of the image" not in inside.values()
    assert inside["MINE"] == "a,b c"


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path / "it's a folder")


CONDA = """#!/bin/sh
cat <<'HOOK'
conda() { echo "$@" >"$RECORD.conda"; export CONDA_PREFIX="/envs/$2"; [ "$2" != gone ]; }
HOOK
"""


def test_environments_are_activated_before_anything_runs(script: Script) -> None:
    conda = script.folder / "bin" / "conda"
    conda.write_text(CONDA)
    conda.chmod(0o755)
    venv = script.folder / "my venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "activate").write_text('export VIRTUAL_ENV="$OLD_STYLE/venv"\n')  # no set -u
    calls = script.run(rendered(JOB, conda="my env's", venv=str(venv), modules=["cuda/12", "b c"]))
    _, environ = only(calls, "srun")
    assert (environ["CONDA_PREFIX"], environ["VIRTUAL_ENV"]) == ("/envs/my env's", "/venv")
    assert [call[0][1:] for call in calls[:2]] == [["load", "cuda/12"], ["load", "b c"]]
    script.run(rendered(JOB, modules=["cuda/12"], conda="gone"))
    assert script.code == 78
