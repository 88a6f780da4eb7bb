"""What a node looks at before the run: locked memory, slices of GPUs, NCCL's own files."""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from running import Nodes
from trainer import node

KIB = 1 << 10
# Where it has no power over the limit though it may be root.
UNSHARE = ("unshare", "--user", "--map-root-user")
needs_unshare = pytest.mark.skipif(
    not shutil.which("unshare") or subprocess.run([*UNSHARE, "true"], check=False).returncode != 0,
    reason="no user namespaces here",
)
# As `nvidia-smi -L` prints it (driver 550).
LISTED = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)
  MIG 1g.10gb     Device  0: (UUID: MIG-a0)
  MIG 1g.10gb     Device  1: (UUID: MIG-a1)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-cccc)
  MIG 3g.40gb     Device  0: (UUID: MIG-c0)
"""
LIMITS = f"""
import resource, runpy, sys
lacks = runpy.run_path({node.__file__!r}, run_name="node")["lacks_locked_memory"]
lacks.__globals__["LOCKED_BYTES"] = int(sys.argv[1])
print(lacks(None))
print(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "run").mkdir()
    made = Nodes(tmp_path / "run", tmp_path)
    yield made
    made.close()


def with_limit(soft: int, hard: int, *enter: str, enough: int = node.LOCKED_BYTES) -> list[str]:
    """What is wrong with a limit of locked memory (bytes), and the soft one afterwards."""
    done = subprocess.run(
        [*enter, sys.executable, "-I", "-S", "-c", LIMITS, str(enough)],
        capture_output=True, text=True, timeout=60, check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard)),
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.case("L41")
@needs_unshare
def test_too_little_locked_memory_for_rdma_is_refused() -> None:
    fault, after = with_limit(64 * KIB, 64 * KIB, *UNSHARE)
    assert fault.startswith(
        "a process may lock only 64 KiB of memory, which is too little for RDMA"
    )
    assert "LimitMEMLOCK=infinity" in fault
    assert "IPC_LOCK" in fault
    assert after == str(64 * KIB)


@pytest.mark.case("L41")
@needs_unshare
def test_the_limit_is_raised_as_far_as_the_node_allows() -> None:
    """With 1 MiB in the place of what is enough: few may set more here."""
    answer = with_limit(64 * KIB, 1024 * KIB, *UNSHARE, enough=1024 * KIB)
    assert answer == ["", str(1024 * KIB)]


@pytest.mark.case("L41")
def test_the_capability_stands_for_the_limit() -> None:
    has_it = node.may_lock_all()
    assert (with_limit(64 * KIB, 64 * KIB)[0] == "") == has_it


@pytest.mark.case("L28")
@pytest.mark.parametrize(
    ("named", "found"),
    [
        (None, ["MIG 1g.10gb of GPU 0", "MIG 1g.10gb of GPU 0", "MIG 3g.40gb of GPU 2"]),
        ("0,1", ["MIG 1g.10gb of GPU 0", "MIG 1g.10gb of GPU 0"]),
        ("MIG-a1, MIG-c0", ["MIG 1g.10gb of GPU 0", "MIG 3g.40gb of GPU 2"]),
        ("GPU-cccc", ["MIG 3g.40gb of GPU 2"]),
        ("1", []),
        ("GPU-bbbb", []),
        ("", []),
    ],
)
def test_the_slices_that_the_ranks_would_use(named: str | None, found: list[str]) -> None:
    assert node.visible_slices(LISTED, named) == found


@pytest.mark.case("L28")
@pytest.mark.parametrize(
    ("flags", "nproc", "code"), [((), 2, 78), (("--shared-gpus",), 2, 0), ((), 1, 0)]
)
def test_several_ranks_on_slices_of_gpus_are_refused_unless_forced(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], nproc: int, code: int
) -> None:
    stub(nodes.workdir / "bin", f"cat <<'END'\n{LISTED}END\n", monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a0,MIG-a1")
    nodes.nproc, nodes.also = nproc, flags
    nodes.start(0, 1, preflight="mig")
    assert set(nodes.codes().values()) == {code}, nodes.all_logs()
    text = "2 ranks would use slices of GPUs (MIG: MIG 1g.10gb of GPU 0, MIG 1g.10gb of GPU 0)"
    log = nodes.log(0).read_text()
    assert (f"): {text}, which NCCL does not support" in log) == (code == 78)
    assert (log.count("node 0 (") and log.count("; node 1 (") > 0) == (code == 78)


def test_a_query_that_fails_hinders_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub(tmp_path / "bin", "exit 9\n", monkeypatch)
    args = argparse.Namespace(
        nproc=8, local_world_size=1, shared_gpus=False, local_rank=0, host="node-1"
    )
    assert node.has_slices(args) == ""
    assert "node-1: nvidia-smi does not list the GPUs: " in capsys.readouterr().err


def stub(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts an nvidia-smi in front of PATH."""
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{text}")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_what_nccl_reads_from_files_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    system, home = tmp_path / "nccl.conf", tmp_path / "home"
    home.mkdir()
    system.write_text("# a site's\nNCCL_IB_HCA=mlx5_9\nNCCL_DEBUG=WARN\nTOKEN=secret\n")
    (home / ".nccl.conf").write_text(" NCCL_ALGO=Ring\n")
    monkeypatch.setattr(node, "NCCL_FILES", (str(system), "~/.nccl.conf"))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5")
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    monkeypatch.delenv("NCCL_CONF_FILE", raising=False)
    assert node.show_nccl_files(argparse.Namespace(host="node-1", local_rank=0)) == ""
    said = capsys.readouterr().err.splitlines()
    site = "NCCL_IB_HCA=mlx5_9 (not used: 'mlx5' is set), NCCL_DEBUG=WARN"
    assert said == [
        f"[node] node-1: NCCL reads {system}: {site}",
        "[node] node-1: NCCL reads ~/.nccl.conf: NCCL_ALGO=Ring",
    ]
    assert node.show_nccl_files(argparse.Namespace(host="node-1", local_rank=1)) == ""
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"preflight": "mig,luck"},
            "--preflight 'luck': there are memlock, mig, nccl-conf, routes",
        ),
        ({"source": "set_env.sh"}, "--source 'set_env.sh' must be absolute"),
        ({"address_family": "ipv5"}, "--address-family: invalid choice: 'ipv5'"),
    ],
)
def test_faulty_arguments_are_told(nodes: Nodes, change: dict[str, str], words: str) -> None:
    nodes.start(0, **change)
    assert nodes.codes() == {0: 78}
    assert words in nodes.log(0).read_text()
