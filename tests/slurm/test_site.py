"""What launchers have failed at on other sites, made here on a real Slurm: cores and GPUs of a
task, signals of both kinds, what an attempt leaves behind, what a site wants."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.base import State
from running import wait_until
from slurm.cluster import Cluster
from slurm.probing import PAIR, Probe, rendered, seen

ENV = {
    "lower_Case": "kept", "COMMAS": "a,b=c,", "QUOTES": "it's \"x\" `y` $HOME \\ *",
    "LINES": "a\nb ", "EMPTY": "", "UNICODE": "ü ≠",
}  # fmt: skip


@pytest.mark.slurm24
@pytest.mark.case("L06", "L07", "L22", "L23", "L24", "L25", "L26")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores to tell one from all")
@pytest.mark.parametrize(
    ("launcher", "gpus", "cores"), [("torchrun", "gpus-per-node", 2), ("srun", "gres", 1)]
)
def test_a_rank_has_its_cores_all_gpus_and_the_jobs_environment(
    probe: Probe, launcher: str, gpus: str, cores: int
) -> None:
    job = {**PAIR, "launcher": launcher, "env": ENV}
    misled = {"SLURM_LAUNCH_NODE_IPADDR": "10.77.0.1", "SLURM_PROCID": "0", "MASTER_ADDR": "head"}
    handle = probe.submit("done", job, environ=misled, gpus=gpus, nodelist="node[2-3]")
    probe.ends(handle, State.DONE)
    ranks = seen(handle)
    assert [rank["host"] for rank in ranks] == ["node2", "node2", "node3", "node3"]
    for number, rank in enumerate(ranks):
        environ = rank["environ"]
        assert (environ["RANK"], environ["LOCAL_RANK"]) == (str(number), str(number % 2))
        assert environ["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert environ["MASTER_ADDR"] == "10.77.0.12"
        assert {name: environ.get(name) for name in ENV} == ENV
        assert environ["PATH"].endswith(os.environ["PATH"])
        # For torchrun's ranks the cores of both: it shares them out among its threads.
        assert len(rank["cores"]) == cores, rank["cores"]
    assert len({rank["environ"]["MASTER_PORT"] for rank in ranks}) == 1


@pytest.mark.case("L24")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores to tell one from all")
def test_without_our_option_a_task_would_get_one_core(site: Cluster, tmp_path: Path) -> None:
    """What makes the test above worth something."""
    script = "srun --ntasks=1 grep Cpus_allowed_list /proc/self/status"
    job = site.sbatch(script, "-N1", "--cpus-per-task=2", output=tmp_path / "log")
    assert site.wait_for_end(job)["JobState"] == "COMPLETED"
    assert "," not in (tmp_path / "log").read_text().split()[1].replace("-", ",")


@pytest.mark.case("L15", "L16", "L21", "L44")
def test_signals_of_both_kinds_and_nothing_left_for_the_next_attempt(probe: Probe) -> None:
    site = probe.cluster
    job = {**PAIR, "resources": {"nodes": 2, "ranks_per_node": 1}, "launcher": "srun"}
    handle = probe.submit("leave=4", job, signal="USR2")
    id_ = handle.ids["job"]
    probe.wait_ready(handle, 1, num_ranks=2)
    site.client("scontrol", "requeue", id_)
    probe.start_again(handle)
    probe.wait_ready(handle, 2, num_ranks=2)
    site.client("scancel", "--signal=USR2", id_)  # to the steps only
    probe.start_again(handle)
    probe.wait_ready(handle, 3, num_ranks=2)
    site.client("scancel", "--signal=USR2", "--batch", id_)  # to the script only
    probe.start_again(handle)
    probe.ends(handle, State.DONE)
    for attempt in (2, 3, 4):
        ranks = seen(handle, attempt)
        assert len(ranks) == 2
        # A rank is told by the drain file: a signal might find another handler than ours.
        assert [(rank["left"], rank["received"]) for rank in ranks] == [([], [])] * 2


@pytest.mark.case("L29")
@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"python": "/no/such/python"}, 127),  # the shell's code for what is not there
        ({"setup": ["exit 3"]}, 3),
        ({"modules": ["nope"]}, 78),
        ({"venv": "/no/such/folder"}, 78),
        ({"conda": "nope"}, 78),
    ],
)
def test_an_early_failure_keeps_no_node(probe: Probe, facts: dict[str, Any], code: int) -> None:
    handle = probe.submit("done", PAIR, **facts)
    wait_until(lambda: probe.status(handle).state.is_final, "its end")
    shown = probe.cluster.scontrol(handle.ids["job"])
    assert (shown["JobState"], shown["ExitCode"]) == ("FAILED", f"{code}:0"), probe.logs(handle)
    assert shown["Restarts"] == "0"
    wait_until(lambda: not probe.cluster.client("squeue", "-h"), "an empty queue")
    for node in probe.cluster.nodes:
        wait_until(lambda: probe.cluster.node_state(node) == "idle", f"{node} is idle")  # noqa: B023


# --- what a site wants -------------------------------------------------------------------------


@pytest.mark.slurm24
def test_slurm_takes_all_that_a_site_may_want(probe: Probe) -> None:
    site = probe.cluster
    site.client("scontrol", "update", "NodeName=node1", "Features=fast,big")
    site.client(
        *("scontrol", "create", "reservation", "ReservationName=course", "StartTime=now"),
        *("Duration=600", "Users=root", "Nodes=node1"),
    )
    facts: dict[str, Any] = {
        "partition": "main", "account": "lab", "qos": "high", "constraint": "fast&big",
        "reservation": "course", "nodelist": "node1", "exclude": "node3", "exclusive": True,
        "begin": "now+1hour", "comment": "it's a \"test\" of $HOME `x`, ü", "mail_type": "END,FAIL",
        "mail_user": "me@example.org", "gpus": "gres",
        "options": {"nice": "7", "hold": None, "wckey": "a b"},
    }  # fmt: skip
    job = {"resources": {"gpus_per_node": 1, "memory": "1GiB", "time_limit": "90m"}}
    try:
        assert "to start at" in probe.backend.online_check(rendered(job, **facts))
        handle = probe.submit("done", job, **facts)
        shown = site.scontrol(handle.ids["job"])
    finally:
        site.client("scancel", "--user=root")
        wait_until(lambda: not site.client("squeue", "-h"), "no jobs")
        site.client("scontrol", "delete", "ReservationName=course")
    expected = {
        "JobName": "probe", "Partition": "main", "Account": "lab", "Features": "fast&big",
        "Reservation": "course", "ReqNodeList": "node1", "ExcNodeList": "node3",
        "Comment": facts["comment"], "MailUser": "me@example.org", "TimeLimit": "01:30:00",
        "Requeue": "1", "MinMemoryNode": "1G",
    }  # fmt: skip
    assert {name: shown.get(name) for name in expected} == expected
    assert set(shown["MailType"].split(",")) == {"END", "FAIL"}
    assert shown["TresPerNode"] in ("gres:gpu:1", "gres/gpu:1")  # 22.05, 24.11
