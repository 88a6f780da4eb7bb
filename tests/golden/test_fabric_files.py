"""Every preset of a network renders for every target, to the bytes that somebody has read."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.fabrics import names, preset
from orchestrator.network_check import check_network
from orchestrator.plan import make_plan
from orchestrator.profiles import ClusterProfile
from orchestrator.render import Rendered, render
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job

GOLDEN = Path(__file__).parent / "fabrics"
# The file in which each target has the network.
FILES = {
    "local": "node.sh",
    "slurm": "job.sh",
    "job": "job.yaml",
    "jobset": "jobset.yaml",
    "pytorchjob": "pytorchjob.yaml",
    "trainjob": "runtime.yaml",
}
KUBERNETES = {
    "runs": {"pvc": "runs"},
    "pod_security": "none",
    "run_as_user": 0,  # whom IPC_LOCK reaches
    "sidecars": {
        "tcpx-daemon": {"image": "registry.example.org/tcpx-daemon:1"},
        "tcpxo-daemon": {"image": "registry.example.org/tcpxo-daemon:1"},
    },
}
# What pods need of a site with them: a file of the node, devices, a name of the GPUs.
BY_SITE = ("azure-nd-h100-v5", "slingshot", "xccl")
JOB = """
name: wired
resources: {{nodes: 2, gpus_per_node: {gpus}}}
train: {{model: {{preset: nano}}, data: {{synthetic: {{samples: 64}}}}, steps: 2}}
"""


@functools.cache
def render_preset(name: str, target: str) -> Rendered:
    """A job of two nodes on a cluster with that fabric; with GPUs, unless it is for CPUs."""
    raw = {"name": "wired", "target": target, "fabric": name, "kubernetes": KUBERNETES}
    profile = ClusterProfile.model_validate({**raw, "runs_root": "/runs"})
    gpus = 0 if preset(name).backends == ("gloo",) else 1
    job = resolve_job(parse_document(JOB.format(gpus=gpus).encode(), "job.yaml"), profile, [])
    told = [fault.key for fault in check_network(job, profile).warnings]
    assert told == ["fabric"] * (name in BY_SITE and target not in ("local", "slurm"))
    assert not check_network(job, profile).faults
    plan = make_plan(job.spec, profile)
    assert plan.network.fabric == name
    return render(plan)


def golden_files() -> Iterator[Path]:
    for name in names():
        for target, file in FILES.items():
            yield GOLDEN / f"{name}.{target}.{file}"


@pytest.mark.parametrize("target", FILES)
@pytest.mark.parametrize("name", names())
def test_the_bytes_are_those_that_were_read(name: str, target: str, update_golden: bool) -> None:
    text = render_preset(name, target).files[FILES[target]]
    golden = GOLDEN / f"{name}.{target}.{FILES[target]}"
    if update_golden:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, "utf-8")
    assert golden.read_text("utf-8") == text, f"{golden.name} differs; make golden, read the diff"


def test_no_golden_file_is_left_over() -> None:
    assert set(GOLDEN.iterdir()) == set(golden_files())


@pytest.mark.parametrize("target", FILES)
@pytest.mark.parametrize("name", names())
def test_each_variable_of_the_preset_is_there(name: str, target: str) -> None:
    text = render_preset(name, target).files[FILES[target]]
    is_pod = target not in ("local", "slurm")
    for variable, setting in preset(name).variables.items():
        # The preset's pods have neither the node's network nor its files.
        is_left_out = is_pod and (setting.of_node or setting.node_file)
        assert (variable in text) is not is_left_out
        if is_left_out:
            continue
        if (target, variable) != ("local", "NCCL_SOCKET_IFNAME"):  # which is lo there
            assert setting.value in text


def test_the_scripts_of_all_presets_pass_shellcheck() -> None:
    shellcheck = shutil.which("shellcheck") or str(Path(sys.executable).parent / "shellcheck")
    scripts = [str(path) for path in golden_files() if path.suffix == ".sh"]
    assert len(scripts) == 2 * len(names())
    result = subprocess.run([shellcheck, *scripts], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
