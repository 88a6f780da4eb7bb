"""How the time limits of the phases nest: what is refused, and what is left."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import Fault, FaultsError
from orchestrator.plan import make_plan
from orchestrator.profiles import ClusterProfile
from orchestrator.source import Document
from orchestrator.spec import JobSpec, ResolvedJob, resolve_job
from orchestrator.spec.nesting import nesting_doubts
from orchestrator.spec.timeouts import HANG_REPORT_S, LEAVE_S
from orchestrator.units import format_duration
from trainer import node

JOB: dict[str, Any] = {
    "name": "demo",
    "train": {"model": {"preset": "nano"}, "data": {"python_docs": True}, "steps": 5},
}
PHASES = ("start", "rendezvous", "load", "first_step", "step", "evaluation", "checkpoint")


def resolved(
    cluster: dict[str, Any] | None = None, defaults: dict[str, Any] | None = None, **keys: Any
) -> ResolvedJob:
    """The job with keys of its own, those of its cluster and those of the profile's defaults."""
    profile = ClusterProfile(name="dev", target="slurm", defaults=defaults or {})
    data = {**JOB, **keys, "clusters": {"dev": cluster or {}}}
    return resolve_job(Document("f", "", data, {}), profile)


def job(cluster: dict[str, Any] | None = None, **keys: Any) -> JobSpec:
    return resolved(cluster, **keys).spec


def faults(cluster: dict[str, Any] | None = None, **keys: Any) -> tuple[Fault, ...]:
    try:
        job(cluster, **keys)
    except FaultsError as error:
        return error.faults
    return ()


@pytest.mark.parametrize(
    ("limit", "timeouts", "site", "key", "message", "fix"),
    [
        (
            "5m",
            {"shutdown": "5m"},
            {},
            "resources.time_limit",
            (
                "5m, and a stop begins timeouts.shutdown (5m) and 30 s before it: no time would be"
                " left to train"
            ),
            "write a time_limit above 5m30s, or timeouts.shutdown: 2m",
        ),
        (
            "40s",
            {"shutdown": "10s"},
            {},
            "resources.time_limit",
            (
                "40s, and a stop begins timeouts.shutdown (10s) and 30 s before it: no time would "
                "be left to train"
            ),
            "write a time_limit above 40s",
        ),
        (
            None,
            {"shutdown": "6m"},
            {"slurm": {"grace": "90s"}},
            "timeouts.shutdown",
            (
                "6m, and a preempted job is killed after slurm.grace (1m30s): its checkpoint may "
                "be cut off"
            ),
            "write timeouts.shutdown: 1m30s, and see that a checkpoint takes less",
        ),
        (
            None,
            {},
            {"kubernetes": {"grace": "30s"}},
            "timeouts.shutdown",
            (
                "5m, and a preempted job is killed after kubernetes.grace (30s): its checkpoint "
                "may be cut off"
            ),
            "write timeouts.shutdown: 30s, and see that a checkpoint takes less",
        ),
        (
            "1h",
            {"step": "1h"},
            {},
            "timeouts.step",
            (
                "1h, and with 30 s to report where each rank is that is not below "
                "resources.time_limit (1h): it could never be reached"
            ),
            "make it shorter, or resources.time_limit longer than 1h30s",
        ),
        (
            "90s",
            {},
            {},
            "resources.time_limit",
            (
                "1m30s, and a stop begins timeouts.shutdown (5m) and 30 s before it: no time would "
                "be left to train"
            ),
            "write a time_limit above 5m30s, or timeouts.shutdown: 15s",
        ),
        (
            None,
            {"first_step": "10m", "step": "30m"},
            {},
            "timeouts.first_step",
            (
                "10m, and a later step may take timeouts.step (30m): the first one also compiles "
                "and connects"
            ),
            "write timeouts.step: 10m or less, or remove first_step",
        ),
    ],
)
def test_limits_that_cannot_hold_together(
    limit: str | None, timeouts: dict[str, str], site: dict[str, Any],
    key: str, message: str, fix: str,
) -> None:  # fmt: skip
    resources = {"time_limit": limit} if limit else {}
    [fault] = faults(site, resources=resources, timeouts=timeouts)
    assert (fault.key, fault.message, fault.fix) == (key, message, fix)


@pytest.mark.parametrize("phase", PHASES)
def test_each_limit_that_is_written_can_be_reached(phase: str) -> None:
    timeouts = {"shutdown": "1m", "step": "1m", phase: "2h"}
    [fault] = faults(resources={"time_limit": "1h"}, timeouts=timeouts)
    assert fault.key == f"timeouts.{phase}"
    assert not faults(resources={"time_limit": "3h"}, timeouts=timeouts)


def test_the_first_step_has_as_long_as_any() -> None:
    assert job().limits.first_step_s == 1800
    assert job(timeouts={"step": "2h"}).limits.first_step_s == 7200
    assert job(timeouts={"step": "10s"}).limits.first_step_s == 1800
    assert job(timeouts={"step": "10s", "first_step": "1m"}).limits.first_step_s == 60


@pytest.mark.parametrize(
    ("defaults", "limit", "timeouts", "held", "doubts"),
    [
        ({"shutdown": "10m"}, "5m", {}, {"shutdown": 120}, ["resources.time_limit"]),
        ({"shutdown": "10m"}, "2h", {}, {"shutdown": 600}, []),
        ({"shutdown": "10m"}, "10m30s", {}, {"shutdown": 285}, ["resources.time_limit"]),
        ({}, "5m", {}, {"shutdown": 120}, ["resources.time_limit"]),
        ({"shutdown": "10m"}, "5m", {"shutdown": "1m"}, {"shutdown": 60}, []),
        (dict.fromkeys(PHASES, "2h"), "1h", {}, dict.fromkeys(PHASES, 7200), []),
        ({"step": "1h"}, None, {"first_step": "10m"}, {"step": 600, "first_step": 600},
         ["timeouts.first_step"]),
        ({"first_step": "10m"}, None, {"step": "1h"}, {"step": 3600, "first_step": 3600}, []),
        # The default gives way to the profile as well, and the profile to the job.
        ({"first_step": "10m"}, None, {}, {"step": 600, "first_step": 600},
         ["timeouts.first_step"]),
        ({"first_step": "2h"}, None, {}, {"step": 1800, "first_step": 7200}, []),
        ({"step": "1h"}, None, {}, {"step": 3600, "first_step": 3600}, []),
        ({"first_step": "5m", "step": "10m"}, None, {"step": "20m"},
         {"step": 1200, "first_step": 1200}, []),
        ({}, "5m30s", {}, {"shutdown": 135}, ["resources.time_limit"]),
        ({}, "5m31s", {}, {"shutdown": 135}, ["resources.time_limit"]),
        ({}, "10m59s", {}, {"shutdown": 299}, ["resources.time_limit"]),
        ({}, "11m", {}, {"shutdown": 300}, []),
        ({"shutdown": "10m"}, "10m31s", {}, {"shutdown": 285}, ["resources.time_limit"]),
        ({}, "5m31s", {"shutdown": "5m"}, {"shutdown": 300}, ["resources.time_limit"]),
    ],
)  # fmt: skip
def test_what_the_profiles_defaults_say_gives_way_to_what_the_job_writes(
    defaults: dict[str, str], limit: str | None, timeouts: dict[str, str],
    held: dict[str, int], doubts: list[str],
) -> None:  # fmt: skip
    resources = {"time_limit": limit} if limit else {}
    found = resolved({}, {"timeouts": defaults}, resources=resources, timeouts=timeouts)
    limits = found.spec.limits._asdict()
    assert {name: limits[f"{name}_s"] for name in held} == held
    assert [found.fault(doubt).key for doubt in nesting_doubts(found.spec, "slurm")] == doubts


@pytest.mark.parametrize(
    ("target", "begin"), [("slurm", ["after 1s"]), ("jobset", ["at half of it"]), ("local", [])]
)
def test_a_stop_that_begins_early_is_told(target: str, begin: list[str]) -> None:
    spec = job(resources={"time_limit": "5m31s"}, timeouts={"shutdown": "5m"})
    text = "5m31s leaves little beside timeouts.shutdown (5m): the stop begins "
    assert [d.message for d in nesting_doubts(spec, target)] == [text + word for word in begin]
    longer = job(resources={"time_limit": "11m"}, timeouts={"shutdown": "5m"})
    assert not list(nesting_doubts(longer, target))


@given(st.integers(120, 2000))
def test_a_stop_that_nobody_writes_never_begins_before_half_of_the_time(limit: int) -> None:
    shutdown_s = job(resources={"time_limit": f"{limit}s"}).limits.shutdown_s
    assert limit - shutdown_s - LEAVE_S >= limit / 2


@pytest.mark.parametrize("where", ["job", "cluster", "set"])
def test_a_limit_of_the_profile_that_the_job_writes_too_is_the_jobs(where: str) -> None:
    written = {"timeouts": {"step": "2h"}}
    profile = ClusterProfile(name="dev", target="slurm", defaults={"timeouts": {"step": "3h"}})
    data = {**JOB, "resources": {"time_limit": "1h"}, **(written if where == "job" else {})}
    data["clusters"] = {"dev": written if where == "cluster" else {}}
    sets = ["timeouts.step=2h"] if where == "set" else []
    with pytest.raises(FaultsError, match="2h, and with 30 s to report"):
        resolve_job(Document("f", "", data, {}), profile, sets)


def test_what_cannot_work_is_told_where_the_profile_says_it() -> None:
    with pytest.raises(FaultsError) as caught:
        resolved({"slurm": {"grace": "90s"}}, {"timeouts": {"shutdown": "10m"}})
    assert [(f.file, f.key) for f in caught.value.faults] == [("profile dev", "timeouts.shutdown")]
    with pytest.raises(FaultsError) as caught:
        resolved({}, {"timeouts": {"first_step": "5m", "step": "10m"}})
    [fault] = caught.value.faults
    assert (fault.file, fault.key) == ("profile dev", "timeouts.first_step")
    assert fault.message.startswith("5m, and a later step may take timeouts.step (10m)")


def test_a_fault_has_the_number_that_stands_where_it_points() -> None:
    site, defaults = {"slurm": {"grace": "90s"}}, {"timeouts": {"shutdown": "10m"}}
    with pytest.raises(FaultsError) as caught:
        resolved(site, defaults, resources={"time_limit": "5m"})
    [fault] = caught.value.faults
    assert fault.message.startswith("10m, 2m beside this resources.time_limit, and a preempted job")


@pytest.mark.parametrize("nodes", [1, 1000])
def test_limits_by_default_grow_with_the_job(nodes: int) -> None:
    limits = job(resources={"nodes": nodes}).limits
    assert (limits.start_s, limits.rendezvous_s, limits.load_s) == (
        600 + nodes, 600 + nodes, 1800 + nodes,
    )  # fmt: skip
    assert (limits.queue_s, limits.evaluation_s) == (None, None)


seconds = st.one_of(st.none(), st.integers(1, 100), st.integers(1, 100_000))


@given(
    st.fixed_dictionaries(dict.fromkeys((*PHASES, "shutdown", "queue"), seconds)),
    seconds, seconds, seconds,
)  # fmt: skip
def test_any_limits_are_refused_or_nest(
    timeouts: dict[str, int | None], limit: int | None, slurm: int | None, pods: int | None
) -> None:
    written = {name: format_duration(s) for name, s in timeouts.items() if s is not None}
    site = {
        name: {"grace": format_duration(s)}
        for name, s in (("slurm", slurm), ("kubernetes", pods))
        if s is not None
    }
    resources = {"time_limit": format_duration(limit)} if limit else {}
    try:
        spec = job(site, resources=resources, timeouts=written)
    except FaultsError as error:
        for fault in error.faults:
            assert fault.key.startswith(("timeouts.", "resources.time_limit"))
            assert sum(c.isdigit() for c in fault.message) >= 2  # both numbers
            assert fault.fix
        return
    plan = make_plan(spec, ClusterProfile(name="dev", target="slurm"))
    limits, trainer = plan.limits, plan.trainer
    assert limits.first_step_s >= limits.step_s == trainer["step_timeout_s"]
    assert trainer["first_step_timeout_s"] == limits.first_step_s
    for grace in (slurm, pods):
        assert grace is None or limits.shutdown_s <= grace
    if limit is not None:
        assert limits.shutdown_s + 30 < limit
        for name in PHASES:
            assert timeouts[name] is None or timeouts[name] + 30 < limit  # type: ignore[operator]


def test_what_the_nodes_take_for_granted_is_counted_with() -> None:
    assert (node.TIME_LIMIT_MARGIN_S, node.HANG_GRACE_S) == (LEAVE_S, HANG_REPORT_S)
