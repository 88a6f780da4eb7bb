"""One real Slurm cluster for all tests of this folder; they are skipped without root or Slurm.

DEV_CLUSTER_DEBIAN=13 runs them on Debian 13's Slurm.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm.cluster import Cluster, dev_cluster, missing

HERE = Path(__file__).resolve().parent
NUM_NODES = 4
GPUS_PER_NODE = 2


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "slurm: needs root and a real Slurm (slurm/dev-cluster install)"
    )


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


@pytest.fixture(autouse=True)
def _reset_cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test finds idle nodes and no jobs."""
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").reset()
