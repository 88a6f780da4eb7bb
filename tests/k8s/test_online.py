"""`validate --online`: the API server looks at all objects and keeps none."""

from __future__ import annotations

from pathlib import Path

import pytest

from k8s.answers import ApiError
from k8s.apiserver import ApiServer
from k8s.site import Cli, Json, Site
from orchestrator.backends.kubernetes_kinds import TARGETS


@pytest.fixture(params=sorted(TARGETS))
def each(request: pytest.FixtureRequest, server: ApiServer, tmp_path: Path, cli: Cli) -> Site:
    return Site(server, tmp_path, request.param, cli)


def test_validate_online_asks_without_making_anything(each: Site) -> None:
    text = each.ok("validate", "job.yaml", "--online")
    assert "the API server takes demo" in text
    assert each.target.kind.name in text
    assert each.server.list("configmaps") == []
    assert not [r for r in each.server.requests if "PATCH" in r and "dryRun=All" not in r]


def test_validate_online_asks_as_if_what_has_ended_were_gone(each: Site) -> None:
    """Most of an object cannot be changed; a submit would make it anew."""
    each.ok("submit", "job.yaml")
    each.end(each.target.failed)

    def immutable(new: Json, old: Json | None) -> ApiError | None:
        is_main = old is not None and new["kind"] == each.target.kind.name
        return ApiError(422, "spec: field is immutable") if is_main else None

    each.server.store.admissions.append(immutable)
    each.ok("validate", "job.yaml", "--online", "--set", "train.steps=6")
    assert len(each.server.list(each.target.kind.plural)) == 1


def test_validate_online_shows_a_refusal(each: Site) -> None:
    denied = ApiError(403, 'admission webhook "policy" denied the request: image not allowed')
    each.server.store.admissions.append(lambda new, old: denied)
    code, text = each.run("validate", "job.yaml", "--online")
    assert code == 1
    assert "image not allowed" in text
    assert "A policy of the cluster refuses it" in text


def test_a_runtime_that_a_dry_run_does_not_make_is_no_fault(
    server: ApiServer, tmp_path: Path, cli: Cli
) -> None:
    site = Site(server, tmp_path, "trainjob", cli)

    def webhook(new: Json, old: Json | None) -> ApiError | None:
        missing = new["kind"] == "TrainJob" and not server.list("trainingruntimes")
        text = 'spec.runtimeRef: Invalid value: must be created before the TrainJob: runtime "demo"'
        return ApiError(422, text) if missing else None

    server.store.admissions.append(webhook)
    assert "the API server takes demo" in site.ok("validate", "job.yaml", "--online")
    site.ok("submit", "job.yaml")
