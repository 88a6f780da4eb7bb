"""`status`, `watch`, `logs` and `checkpoints` of a run on a cluster, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k8s.apiserver import ApiServer
from k8s.shapes import CANCELLED, condition, event, finished, live, running, unscheduled
from k8s.site import Cli, Site
from orchestrator import contract

STEPS = [json.dumps({"step": n, "attempt": 1, "loss": 2.0}) for n in range(1, 6)]
START = json.dumps({"event": "start", "attempt": 1, "step": 0, "steps": 5, "world_size": 1})
LOG = "\n".join(
    ["[node] attempt 1: 1 nodes are here: a", f"[rank 0 a] [metrics] {START}"]
    + [f"[rank 0 a] [metrics] {line}" for line in STEPS]
    + ["[rank 0 a] the model's own words", "[node] attempt 1 ended with 0: done"]
)


@pytest.fixture
def site(server: ApiServer, tmp_path: Path, cli: Cli) -> Site:
    return Site(server, tmp_path, "job", cli)


def done(server: ApiServer) -> None:
    """A run of one node that is over."""
    server.create(live("job", condition("Complete"), spec={"completions": 1, "parallelism": 1}))
    server.create(finished("job", 0, 0))
    server.logs.write("demo-0", LOG)
    server.logs.end("demo-0")


def test_a_run_that_is_done_is_read_from_its_logs(site: Site, server: ApiServer) -> None:
    done(server)
    (status,) = json.loads(site.ok("status", "demo", "--json"))
    assert (status["state"], status["attempt"], status["step"]) == ("DONE", 1, 5)
    shown = site.ok("watch", "demo")
    assert "step      5" in shown
    assert "demo: DONE (done)" in shown
    for more in ((), ("-f",)):
        lines = site.ok("logs", "demo", *more).splitlines()
        assert lines[-2:] == [
            "[1] rank 0 | the model's own words",
            "[1] node 0 | [node] attempt 1 ended with 0: done",
        ]
        assert len(lines) == 9
    assert len(site.ok("logs", "demo", "--rank", "0").splitlines()) == 7
    assert site.ok("logs", "demo", "--attempt", "1").startswith("[1] rank 0 | [metrics] {")
    assert "no log of rank 7" in site.run("logs", "demo", "--rank", "7")[1]


def test_a_report_has_what_the_logs_tell(site: Site, server: ApiServer) -> None:
    done(server)
    page = site.ok("report", "demo", "--out", "-")
    assert "Loss, nats per token by step: training from 2 at 1 to 2 at 5" in page
    assert '<dd>5</dd><dd class="small">of 5</dd>' in page


def test_checkpoints_need_a_running_pod(site: Site, server: ApiServer) -> None:
    done(server)
    assert "is read through a running pod" in site.run("checkpoints", "demo")[1]


def test_a_running_pod_gives_what_the_volume_has(
    site: Site, server: ApiServer, tmp_path: Path
) -> None:
    (tmp_path / "clusters.yaml").write_text(
        (tmp_path / "clusters.yaml").read_text().replace("/runs\n", f"{tmp_path}/volume\n")
    )
    folder = tmp_path / "volume" / "demo"
    logs = folder / "attempts" / "1" / contract.LOGS_DIR
    logs.mkdir(parents=True)
    (logs / "rank-00000.log").write_text("of an attempt whose pods are gone\n")
    server.create(live("job", spec={"completions": 1, "parallelism": 1}))
    server.create(running("job", 0))
    server.logs.write("demo-0", "[node] attempt 2: 1 nodes are here: a\n[rank 0 a] new")
    (status,) = json.loads(site.ok("status", "demo", "--json"))
    assert (status["state"], status["attempt"]) == ("RUNNING", 2)
    assert status["reason"] == "1/1 pods ready"
    assert site.ok("logs", "demo").splitlines()[-1] == "[2] rank 0 | new"
    earlier = site.ok("logs", "demo", "--attempt", "1")
    assert earlier == "[1] rank 0 | of an attempt whose pods are gone\n"
    assert "no checkpoint" in site.run("checkpoints", "demo")[1]


def test_why_a_run_waits_and_why_it_was_cancelled(site: Site, server: ApiServer) -> None:
    server.create(live("job"))
    server.create(event("demo", "FailedCreate", "exceeded quota: team, requested: pods=1",
                        at="2030-01-01T00:00:00Z"))  # fmt: skip
    assert "quota team is used up" in site.ok("status", "demo")
    short = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    server.create(unscheduled("job", 0, short))
    (status,) = json.loads(site.ok("status", "demo", "--json"))
    assert status["state"] == "PENDING"
    assert "too little nvidia.com/gpu is free" in status["reason"]
    server.delete("pods", "demo-0")
    about = server.get("jobs", "demo")["metadata"]
    about["annotations"] = CANCELLED
    spec = live("job", suspend=True)["spec"]
    server.set("jobs", "demo", spec=spec, metadata=about)
    (status,) = json.loads(site.ok("status", "demo", "--json"))
    assert status["state"] == "CANCELLED"
