"""What the manifests decide: what starts again, when it ends, what is left behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from objects import (
    JOB,
    KINDS,
    LIMITED,
    TARGETS,
    Object,
    job,
    job_specs,
    main,
    objects,
    objects_of,
    option,
    plan_of,
    pods,
    templates,
)
from orchestrator.errors import UserError
from orchestrator.manifests import CONFIG_LIMIT_BYTES, manifest_values
from orchestrator.render import render

every_kind = pytest.mark.parametrize("target", TARGETS)
GRACE_S = 160  # timeouts.shutdown of LIMITED and a minute


@pytest.mark.case("L32")
def test_nobody_stays_on_its_gpus_when_a_pytorchjob_has_ended() -> None:
    assert main("pytorchjob")["spec"]["runPolicy"]["cleanPodPolicy"] == "Running"


@every_kind
@pytest.mark.case("L33")
def test_restarts_are_bounded_by_the_nodes_themselves(target: str) -> None:
    for template in pods(target, LIMITED):
        assert option(template, "--failures") == "4"
        assert option(template, "--requeues") == "7"
        assert option(template, "--deadline-s") == str(2 * 86400)
        assert option(template, "--repeat-codes-from") == "128"


@pytest.mark.case("L33")
def test_restarts_are_bounded_by_the_kind_too_where_it_can() -> None:
    deadline_s = 2 * 86400 + 8 * 3600 + GRACE_S
    (spec,) = job_specs(objects("job", LIMITED))
    assert spec["backoffLimit"] == (4 + 7 + 1) * (4 + 1) * 3
    assert spec["activeDeadlineSeconds"] == deadline_s
    policy = main("pytorchjob", LIMITED)["spec"]["runPolicy"]
    assert policy["backoffLimit"] == (4 + 7 + 1) * (4 + 1) * 3
    assert policy["activeDeadlineSeconds"] == deadline_s
    assert (
        main("jobset", LIMITED)["spec"]["failurePolicy"]["maxRestarts"] == (4 + 7 + 1) * (4 + 1) - 1
    )
    assert main("trainjob", LIMITED)["spec"]["activeDeadlineSeconds"] == deadline_s
    older = main("trainjob", LIMITED, trainjob_version="2.1")
    assert "activeDeadlineSeconds" not in older["spec"]


@every_kind
def test_numbers_of_restarts_fit_into_their_fields(target: str) -> None:
    found = objects_of(replace(plan_of(target), requeues=2**31))
    spec = found[KINDS[target]]["spec"]
    if target == "trainjob":
        spec = found["TrainingRuntime"]["spec"]["template"]["spec"]
    for part in (spec, spec.get("failurePolicy", {}), spec.get("runPolicy", {})):
        for name in ("backoffLimit", "maxRestarts"):
            assert part.get(name, 2**31 - 1) == 2**31 - 1


@pytest.mark.parametrize("target", ["jobset", "trainjob"])
@pytest.mark.case("L34")
def test_one_failed_pod_starts_all_again(target: str) -> None:
    found = objects(target)
    (spec,) = job_specs(found)
    assert spec["backoffLimit"] == 0
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    jobset = found.get("JobSet") or found["TrainingRuntime"]["spec"]["template"]
    (rule,) = jobset["spec"]["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])


@every_kind
@pytest.mark.case("L34")
def test_no_pod_waits_for_ever_for_one_that_does_not_come_back(target: str) -> None:
    for template in pods(target, job(timeouts={"start": "5m"})):
        assert option(template, "--start-timeout-s") == "300"


@pytest.mark.parametrize("target", ["job", "jobset", "trainjob"])
def test_what_would_fail_again_ends_the_job(target: str) -> None:
    (spec,) = job_specs(objects(target))
    fail, ignore = spec["podFailurePolicy"]["rules"]
    assert fail["action"] == "FailJob"
    codes = {"containerName": "node", "operator": "In", "values": [1, 78]}
    assert fail["onExitCodes"] == codes
    assert ignore == {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    assert spec["podReplacementPolicy"] == "Failed"


def test_a_pytorchjob_repeats_by_exit_code() -> None:
    roles = main("pytorchjob")["spec"]["pytorchReplicaSpecs"].values()
    assert {role["restartPolicy"] for role in roles} == {"ExitCode"}


@every_kind
@pytest.mark.case("L36")
def test_no_sidecar_of_istio_outlives_the_run(target: str) -> None:
    for template in pods(target):
        for place in ("labels", "annotations"):
            assert template["metadata"][place]["sidecar.istio.io/inject"] == "false"


@pytest.mark.case("L37")
def test_a_trainjob_never_gives_its_jobset_a_time_to_live() -> None:
    plan = plan_of("trainjob")
    keeping = replace(plan, kubernetes=plan.kubernetes.model_copy(update={"keep_finished": 60}))
    assert "ttlSecondsAfterFinished:" not in render(keeping).files["trainjob.yaml"]
    runtime = objects_of(keeping)["TrainingRuntime"]["spec"]["template"]["spec"]
    assert "ttlSecondsAfterFinished" not in runtime
    assert "ttlSecondsAfterFinished" not in runtime["replicatedJobs"][0]["template"]["spec"]


def test_others_stay_for_as_long_as_they_are_kept() -> None:
    kept: dict[str, Any] = {"keep_finished": "2d"}
    assert main("job", **kept)["spec"]["ttlSecondsAfterFinished"] == 2 * 86400
    assert main("jobset", **kept)["spec"]["ttlSecondsAfterFinished"] == 2 * 86400
    policy = main("pytorchjob", **kept)["spec"]["runPolicy"]
    assert policy["ttlSecondsAfterFinished"] == 2 * 86400


def test_a_configuration_that_no_config_map_takes_is_refused() -> None:
    with pytest.raises(UserError, match=r"1048577 bytes.*big\.json"):
        manifest_values(plan_of("job"), {"big.json": "x" * (CONFIG_LIMIT_BYTES + 1 - 8)}, "")


@every_kind
def test_a_run_that_is_to_wait_starts_suspended(target: str) -> None:
    def suspended(found: Object) -> object:
        spec = found["spec"].get("runPolicy", found["spec"])
        return spec.get("suspend")

    assert suspended(main(target, suspend=True)) is True
    assert suspended(main(target)) is None


@every_kind
def test_the_hash_tells_any_change(target: str) -> None:
    def hashes(given: dict[str, Any], **kubernetes: Any) -> set[str]:
        found = objects(target, given, **kubernetes)
        every = [found[KINDS[target]], *templates(found)]
        return {one["metadata"]["annotations"]["orchestrate.dev/content-hash"] for one in every}

    (first,) = hashes(JOB)
    assert hashes(JOB) == {first}
    assert len(first) == 16
    assert hashes(JOB, image="other") != {first}
    assert hashes(job(train={"steps": 6})) != {first}
    assert option(pods(target)[0], "--id") == f"run-{first[:8]}"
