"""`orchestrate diff --live`: what a submit would change, by the server's own dry run."""

from __future__ import annotations

from pathlib import Path

import pytest

from k8s.apiserver import ApiServer
from k8s.site import Cli, Site
from orchestrator.backends.kubernetes_kinds import TARGETS

DIFF = ("diff", "job.yaml", "--live")


@pytest.fixture(params=sorted(TARGETS))
def each(request: pytest.FixtureRequest, server: ApiServer, tmp_path: Path, cli: Cli) -> Site:
    return Site(server, tmp_path, request.param, cli)


@pytest.fixture
def site(server: ApiServer, tmp_path: Path, cli: Cli) -> Site:
    return Site(server, tmp_path, "job", cli)


def test_what_was_submitted_has_no_difference_whatever_controllers_write(each: Site) -> None:
    each.ok("submit", "job.yaml")
    plural = each.target.kind.plural
    spec = each.main()["spec"]
    each.server.set(plural, "demo", status={"active": 2}, spec={**spec, "manualSelector": False})
    assert each.run(*DIFF)[0] == 0


def test_a_run_that_was_not_submitted_is_missing_as_a_whole(each: Site) -> None:
    code, text = each.run(*DIFF)
    assert code == 1
    assert f"here/{each.target.kind.name}/demo missing" in text
    assert "here/ConfigMap/demo missing" in text
    assert each.server.list(each.target.kind.plural) == []


def test_a_change_of_the_job_is_shown_where_it_ends_up(each: Site) -> None:
    each.ok("submit", "job.yaml")
    before = each.main()
    code, text = each.run(*DIFF, "--set", "train.steps=7")
    assert code == 1
    assert '-      "steps": 5' in text
    assert '+      "steps": 7' in text
    assert "orchestrate.dev/content-hash" in text
    assert each.main() == before


def test_what_the_server_would_not_change_in_place_is_shown_too(site: Site) -> None:
    site.ok("submit", "job.yaml")
    site.server.fail("PATCH .*/jobs/", status=422, message="spec.template: field is immutable")
    code, text = site.run(*DIFF, "--set", "resources.nodes=2")
    assert code == 1
    assert "-  completions: 1" in text
    assert "+  completions: 2" in text
    assert "uid" not in text


def test_what_somebody_else_has_taken_is_shown_and_no_conflict(site: Site) -> None:
    site.ok("submit", "job.yaml")
    other = {"manager": "somebody", "operation": "Update", "apiVersion": "batch/v1",
             "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:backoffLimit": {}}}}  # fmt: skip
    live = site.main()
    metadata = {**live["metadata"], "managedFields": [other]}
    site.server.set("jobs", "demo", metadata=metadata, spec={**live["spec"], "backoffLimit": 1})
    code, text = site.run(*DIFF)
    assert code == 1
    assert "-  backoffLimit: 1\n" in text


def test_no_permission_is_told_and_no_difference(site: Site) -> None:
    site.ok("submit", "job.yaml")
    site.server.fail("PATCH", status=403, message='User "ada" cannot patch resource "jobs"')
    code, text = site.run(*DIFF)
    assert code == 1
    assert "no permission. User ada may not patch" in text
    assert "+++" not in text


def test_variables_are_those_that_a_submit_would_put_in(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHO", "ada")
    site.write_job("demo", "env: {OWNER: '${WHO}'}\n")
    site.ok("submit", "job.yaml")
    assert site.run(*DIFF)[0] == 0
    monkeypatch.setenv("WHO", "grace")
    code, text = site.run(*DIFF)
    assert code == 1
    values = [line for line in text.splitlines() if "value: grace" in line]
    assert [line[0] for line in values] == ["+"]
