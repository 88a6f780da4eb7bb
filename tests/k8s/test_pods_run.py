"""From the manifests alone to a trained model, for each kind: the pods' real argv with the
environment that each pod would have, as processes in a network of their own."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8s.controllers import Do
from k8s.manifests import KINDS, STEPS, objects_of, run_locally, workspace
from k8s.simulation import Cluster, Network, missing
from running import losses, read
from slurm.training import Act, Outcome, at, outcome

pytestmark = pytest.mark.e2e
REQUEUED, FAILED, DONE = 203, 129, 0


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if reason := missing():
        pytest.skip(f"pods need namespaces of their own: {reason}")
    network = Network()
    yield network
    network.close()


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What comes out of the job if nothing happens, on the local backend."""
    run_dir = run_locally(tmp_path_factory.mktemp("straight"))
    assert sorted(losses(run_dir)) == list(range(1, STEPS + 1))
    return outcome(run_dir)


class Run:
    """The job on the simulated cluster, hit at chosen steps."""

    def __init__(self, target: str, folder: Path, network: Network, acts: list[Act]) -> None:
        claims = {"runs": folder / "runs", "code": workspace(folder / "code", acts)}
        claims["runs"].mkdir()
        self.dir = claims["runs"] / "pods"
        self.cluster = Cluster(objects_of(target), folder / "pods", network, claims)
        self.cluster.start()

    def wait_for(self, attempt: int, name: str) -> None:
        path = self.dir / "attempts" / str(attempt) / name
        self.cluster.wait(path.exists, str(path))

    def codes(self) -> list[int]:
        return [code for _, code in self.cluster.codes]

    def resumed_from(self) -> list[str | None]:
        """The checkpoint that each attempt went on from."""
        lines = map(json.loads, (self.dir / "metrics.jsonl").read_text().splitlines())
        return [line["resumed_from"] for line in lines if line.get("event") == "start"]


@pytest.fixture
def run(tmp_path: Path, network: Network) -> Iterator[type]:
    started: list[Run] = []

    class Started(Run):
        def __init__(self, target: str, acts: list[Act]) -> None:
            super().__init__(target, tmp_path, network, acts)
            started.append(self)

    yield Started
    for one in started:
        one.cluster.close()
