"""Names that a job file may not use: environment variables and network interfaces."""

from __future__ import annotations

import os
import subprocess

import pytest

from orchestrator.errors import FaultsError
from orchestrator.source import parse_document
from orchestrator.spec import ResolvedJob, resolve_job
from orchestrator.spec.environment import MAX_BYTES

JOB = """\
name: good
train: {model: {preset: nano}, data: {python_docs: true}, steps: 5}
"""
# Bash Reference Manual, "Bash Variables".
BASH_OWN = [
    "BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID",
    "BASHPID", "BASH_ARGC", "BASH_ARGV", "BASH_LINENO", "BASH_SOURCE", "DIRSTACK", "FUNCNAME",
    "GROUPS",
]  # fmt: skip
# torch 2.13, torch/distributed/elastic/agent/server/local_elastic_agent.py.
RANKS_OWN = [
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE",
    "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "PET_NNODES", "SLURM_JOB_ID", "ORCHESTRATE_RUN_DIR",
]  # fmt: skip


def resolve(more: str) -> ResolvedJob:
    return resolve_job(parse_document(f"{JOB}{more}\n".encode(), "job.yaml"))


@pytest.mark.parametrize("section", ["env: {%s: x}", "network: {env: {%s: x}}"])
@pytest.mark.parametrize("name", BASH_OWN + RANKS_OWN)
@pytest.mark.case("L09")
def test_a_variable_of_the_shell_or_the_ranks_is_refused(section: str, name: str) -> None:
    with pytest.raises(FaultsError, match=name) as caught:
        resolve(section % name)
    (fault,) = caught.value.faults
    assert fault.key.endswith(f"env.{name}")
    assert "remove it" in fault.fix


@pytest.mark.parametrize("name", BASH_OWN)
def test_bash_does_not_let_them_be_set(name: str) -> None:
    script = f'export {name}=set; [ "${name}" = set ]'
    assert subprocess.run(["bash", "-ec", script], capture_output=True, check=False).returncode


@pytest.mark.parametrize(
    "name", ["ROLE_ARN", "GROUP_NAME", "UIDS", "BASH_ENV", "LOCAL_DIR", "PETS"]
)
def test_names_that_only_look_alike_are_allowed(name: str) -> None:
    assert resolve(f"env: {{{name}: x}}").spec.env == {name: "x"}


@pytest.mark.skipif(os.sysconf("SC_PAGESIZE") != 4096, reason="larger pages, a larger limit")
def test_a_value_is_as_long_as_a_process_can_have_it() -> None:
    longest = "x" * (MAX_BYTES - len("A=") - 1)
    assert resolve(f"env: {{A: {longest}}}").spec.env == {"A": longest}
    subprocess.run(["true"], env={**os.environ, "A": longest}, check=True)
    with pytest.raises(FaultsError, match="128 KiB"):
        resolve(f"env: {{A: {longest}x}}")
    with pytest.raises(OSError, match="too long"):
        subprocess.run(["true"], env={**os.environ, "A": longest + "x"}, check=True)


@pytest.mark.parametrize("name", ["eth0", "eth0:1", "ib0.8001", "veth-a_b@if5", "_x", "e" * 15])
@pytest.mark.case("L11")
def test_an_interface(name: str) -> None:
    assert resolve(f'network: {{interface: "{name}"}}').spec.network.interface == name


@pytest.mark.parametrize(
    "name", [":", "0s", ".", "..", "a/b", "a b", "eth0:", ":1", "-a", "e" * 16, "eth0:1:2"]
)
@pytest.mark.case("L11")
def test_no_interface(name: str) -> None:
    with pytest.raises(FaultsError, match="name of a network interface"):
        resolve(f'network: {{interface: "{name}"}}')
