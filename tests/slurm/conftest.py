"""One real Slurm cluster for all tests of this folder; they are skipped without root or Slurm.

DEV_CLUSTER_DEBIAN=13 runs them on Debian 13's Slurm.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from running import losses, wait_until
from slurm.cluster import Cluster, dev_cluster, missing
from slurm.probing import Probe
from slurm.training import STEPS, Outcome, at, outcome, run_locally

HERE = Path(__file__).resolve().parent
NUM_NODES = 4
GPUS_PER_NODE = 2


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "slurm: needs root and a real Slurm (slurm/dev-cluster install)"
    )
    config.addinivalue_line("markers", "slurm24: runs on Slurm 24.11 too (make test-slurm-24)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("slurm")


@pytest.fixture(scope="session")
def short_dir() -> Iterator[Path]:
    """A folder with a short path, as unix sockets want; skips where no cluster can run."""
    reason = missing()
    if reason:
        pytest.skip(f"no Slurm for tests: {reason}")
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def state_dir(short_dir: Path) -> Iterator[Path]:
    """The state folder of a test's own cluster, which is taken down at the end."""
    folder = short_dir / "own"
    yield folder
    dev_cluster("--state", folder, "down", "--purge")


@pytest.fixture(scope="session")
def cluster(short_dir: Path) -> Iterator[Cluster]:
    """A cluster with accounting. It ends with this process even if that is killed."""
    up = Cluster(short_dir / "c", NUM_NODES)
    up.dev(
        *("up", str(NUM_NODES), "--acct", "--gpus", str(GPUS_PER_NODE)),
        *("--until-pid", str(os.getpid())),
    )
    yield up
    up.dev("down", "--purge")


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What comes out of the training job if nothing happens, on the local backend."""
    folder = tmp_path_factory.mktemp("straight")
    run_dir = run_locally(folder, [at(1, 0, STEPS, "count buckets", "exit")])
    assert int((run_dir / "attempts/1/buckets").read_text()) >= 3
    assert sorted(losses(run_dir)) == list(range(1, STEPS + 1))
    return outcome(run_dir)


@pytest.fixture(scope="session")
def site(short_dir: Path) -> Iterator[Cluster]:
    """A small cluster whose tasks get the cores that srun gives them and no other."""
    up = Cluster(short_dir / "site", 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "DEV_CLUSTER_CONF", "TaskPlugin=task/affinity\nTaskPluginParam=autobind=threads"
        )
        patch.setenv("DEV_CLUSTER_CPUS", "2")
        up.dev("up", "3", "--gpus", "2", "--until-pid", str(os.getpid()))
    yield up
    up.dev("down", "--purge")


@pytest.fixture
def probe(site: Cluster, tmp_path: Path) -> Iterator[Probe]:
    """Runs on it, ended with the test."""
    yield Probe(site, tmp_path)
    site.client("scancel", "--user=root")
    wait_until(lambda: not site.client("squeue", "-h"), "no jobs")


@pytest.fixture(autouse=True)
def _reset_cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test finds idle nodes and no jobs."""
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").reset()
