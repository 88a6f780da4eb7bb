"""What dev-cluster says to mistakes, and where it cannot get what it needs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from slurm.cluster import dev_cluster
from slurm.test_dev_cluster import environments_with


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["up", "0"], "N is 1 to 200, not '0'"),
        (["up", "1", "--gpus", "x:y"], "--gpus is G or TYPE:G"),
        (["up", "1", "--wide"], "unknown option or no value: '--wide'"),
        (["up", "1", "--names", "all"], "--names is ipv4, ipv6, both or none, not 'all'"),
        (["up", "1", "--ipv6-only", "--names", "both"], "no IPv4 addresses for --names both"),
        (["up", "1", "--until-pid", "4194305"], "no process 4194305"),
        (["kill", "node1"], "no node 'node1'"),
        (["exec", "head", "true"], "head is not up"),
        (["exec", "head"], "needs a host and a command"),
        (["fly"], "unknown command 'fly'"),
        (["--debian", "9", "up", "1"], "not '9'"),
    ],
)
def test_mistakes_are_named(state_dir: Path, argv: list[str], message: str) -> None:
    done = dev_cluster("--state", state_dir, *argv, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert environments_with(str(state_dir)) == []


@pytest.mark.usefixtures("short_dir")
@pytest.mark.skipif(shutil.which("debootstrap") is None, reason="it would be installed first")
def test_a_mirror_out_of_reach_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("DEV_CLUSTER_MIRROR", "http://127.0.0.1:9/debian")
    done = dev_cluster("--debian", "13", "install", check=False)
    assert done.returncode == 1
    assert "debootstrap failed: E: Failed getting release file http://127.0.0.1:9/" in done.stderr
    assert "DEV_CLUSTER_MIRROR=URL names another one" in done.stderr


@pytest.mark.usefixtures("short_dir")
def test_a_path_that_slurm_cannot_read_is_refused() -> None:
    done = dev_cluster("--state", "/tmp/a b", "up", "1", check=False)
    assert done.returncode == 1
    assert "must be short and plain" in done.stderr
