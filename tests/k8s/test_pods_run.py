"""From the manifests alone to a trained model, for each kind: the pods' real argv with the
environment that each pod would have, as processes in a network of their own."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from k8s.controllers import Do
from k8s.manifests import JOB, STEPS, objects_of, run_locally, workspace
from k8s.network import Network, missing
from k8s.simulation import Cluster
from running import losses, read
from slurm.training import Act, Outcome, at, outcome

pytestmark = [pytest.mark.e2e, pytest.mark.pods]
FAILED, REQUEUE, CONFIGURATION = 129, 203, 78


class Run:
    """A job on the simulated cluster, in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        network: Network,
        target: str,
        acts: list[Act],
        text: str = JOB,
        **site: object,
    ) -> None:
        claims = {"runs": folder / "runs", "code": workspace(folder / "code", acts)}
        claims["runs"].mkdir()
        self.dir = claims["runs"] / "pods"
        self.cluster = Cluster(objects_of(target, text, **site), folder / "pods", network, claims)

    def wait_for(self, attempt: int, name: str) -> None:
        path = self.dir / "attempts" / str(attempt) / name
        self.cluster.wait(path.exists, str(path))

    def starts(self) -> list[dict[str, Any]]:
        """The event by which each attempt began to train."""
        lines = map(json.loads, (self.dir / "metrics.jsonl").read_text().splitlines())
        return [line for line in lines if line.get("event") == "start"]

    def worlds(self) -> list[int]:
        """The number of ranks of each attempt."""
        return [start["world_size"] for start in self.starts()]

    def resumed_from(self) -> list[int]:
        """The step of the checkpoint that each attempt went on from, 0 without one."""
        names = [start["resumed_from"] for start in self.starts()]
        return [int(name.split("-")[1]) if name else 0 for name in names]


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


@pytest.fixture
def begin(tmp_path: Path, network: Network) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(target: str, acts: list[Act], text: str = JOB, **site: object) -> Run:
        runs.append(Run(tmp_path, network, target, acts, text, **site))
        return runs[0]

    yield start
    for run in runs:
        run.cluster.close()


@pytest.mark.case("L02")
@pytest.mark.case("L17")
@pytest.mark.parametrize("target", ["pytorchjob", "job", "jobset", "trainjob"])
def test_a_run_that_is_asked_to_stop_goes_on_in_new_pods_to_the_same_end(
    target: str, begin: Callable[..., Run], straight: Outcome
) -> None:
    run = begin(target, [at(1, 0, 5, "wait")])
    run.cluster.start()
    run.wait_for(1, "waiting")
    run.cluster.live[1].send(signal.SIGTERM)
    assert run.cluster.ends() is Do.DONE, run.cluster.logs()
    assert run.cluster.codes == [REQUEUE, REQUEUE, 0, 0]
    stopped_at = read(run.dir / "attempts/1/outcome.json")["step"]
    assert 5 <= stopped_at < STEPS
    assert run.resumed_from() == [0, stopped_at]
    assert outcome(run.dir) == straight


@pytest.mark.case("L34")
@pytest.mark.case("L35")
def test_a_rank_that_dies_ends_all_pods_and_all_begin_anew(
    begin: Callable[..., Run], straight: Outcome
) -> None:
    """The first pod to start finds no node 0, neither its name nor its port; the launcher is the
    one of the ConfigMap."""
    run = begin("jobset", [at(1, 1, 6, "kill rank")], launcher_from="config-map")
    run.cluster.start(1)
    run.cluster.wait(lambda: run.cluster.live[1].command()[1:2] == ["/orchestrate/node.py"], "it")
    run.cluster.start(0)
    assert run.cluster.ends() is Do.DONE, run.cluster.logs()
    assert run.cluster.codes == [FAILED, FAILED, 0, 0]
    assert run.resumed_from() == [0, 4]
    assert outcome(run.dir) == straight


@pytest.mark.case("L33")
def test_restarts_end_when_the_budget_is_spent(begin: Callable[..., Run]) -> None:
    """The operator itself would make pods anew for ever."""
    acts = [at(attempt, 1, 0, "kill rank", "build") for attempt in (1, 2)]
    run = begin("pytorchjob", acts, JOB.replace("failures: 2", "failures: 1"))
    run.cluster.start()
    assert run.cluster.ends() is Do.FAILED, run.cluster.logs()
    assert run.cluster.codes == [FAILED, FAILED, 1, 1]


@pytest.mark.parametrize("target", ["jobset", "trainjob"])
def test_a_pod_that_is_killed_in_each_attempt_uses_up_the_failures(
    target: str, begin: Callable[..., Run]
) -> None:
    """The first pod that fails is what JobSet goes by: it starts all again though node 0 has left
    with 1, and their next end is the last."""
    acts = [at(attempt, 0, 5, "wait") for attempt in (1, 2, 3)]
    run = begin(target, acts, JOB.replace("failures: 2", "failures: 1"))
    run.cluster.start()
    for attempt in (1, 2):
        run.wait_for(attempt, "waiting")
        run.cluster.live[1].send(signal.SIGKILL)
        run.wait_for(attempt, "end.json")
    assert run.cluster.ends() is Do.FAILED, run.cluster.logs()
    assert run.cluster.codes == [137, FAILED, 137, 1, 1, 1]
    assert len(list((run.dir / "attempts").iterdir())) == 2


@pytest.mark.case("L38")
def test_an_elastic_run_begins_without_a_pod_that_is_pending(begin: Callable[..., Run]) -> None:
    # Node 0 waits for the other no longer than it would for enough of them.
    text = JOB.replace("nodes: 2", "nodes: {min: 1, max: 2}").replace("step: 5m", "start: 10s")
    run = begin("pytorchjob", [at(1, 0, 5, "wait")], text)
    run.cluster.start(0)
    run.wait_for(1, "waiting")
    run.cluster.live[0].send(signal.SIGTERM)
    run.cluster.wait(lambda: run.cluster.codes == [REQUEUE], "the end of the attempt of one")
    run.cluster.start(1)
    assert run.cluster.ends() is Do.DONE, run.cluster.logs()
    assert run.worlds() == [1, 2]
    assert sorted(losses(run.dir)) == list(range(1, STEPS + 1))


def test_a_fault_in_the_job_is_never_repeated(begin: Callable[..., Run]) -> None:
    run = begin("jobset", [], JOB.replace("acting:build", "acting:built"))
    run.cluster.start()
    assert run.cluster.ends() is Do.FAILED
    assert set(run.cluster.codes) == {CONFIGURATION}
    assert len(list((run.dir / "attempts").iterdir())) == 1


@pytest.mark.parametrize("target", ["pytorchjob", "job", "jobset", "trainjob"])
def test_a_finished_run_whose_object_is_made_again_ends_at_once(
    target: str, begin: Callable[..., Run]
) -> None:
    """As GitOps does with an object that somebody has deleted."""
    run = begin(target, [])
    run.dir.mkdir()
    (run.dir / "DONE").touch()
    run.cluster.start()
    assert run.cluster.ends() is Do.DONE, run.cluster.logs()
    assert run.cluster.codes == [0, 0]
    assert not (run.dir / "attempts").exists()
