"""Several submits of one name: one of them wins as a whole."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from k8s.apiserver import ApiServer
from k8s.site import CLUSTERS, Cli, Json, Site
from orchestrator.backends import kubernetes_apply
from orchestrator.backends.kubernetes import KubernetesBackend
from orchestrator.backends.kubernetes_apply import CLAIM_ANNOTATION
from orchestrator.backends.kubernetes_client import Cluster
from orchestrator.backends.kubernetes_kinds import HASH_ANNOTATION, RUN_LABEL, TARGETS
from orchestrator.errors import BackendError


@pytest.fixture(params=sorted(TARGETS))
def each(request: pytest.FixtureRequest, server: ApiServer, tmp_path: Path, cli: Cli) -> Site:
    return Site(server, tmp_path, request.param, cli)


@pytest.fixture
def site(server: ApiServer, tmp_path: Path, cli: Cli) -> Site:
    return Site(server, tmp_path, "pytorchjob", cli)


def test_two_submits_at_once_make_one_run(each: Site) -> None:
    rivals = _rivals(each, [{}, {}])
    assert [error for error in rivals if error] == []
    assert len(each.server.list(each.target.kind.plural)) == 1


def test_two_submits_at_once_with_other_contents(each: Site) -> None:
    """One of them wins as a whole, whichever it is."""
    errors = _rivals(each, [{"train.steps": "6"}, {"train.steps": "7"}])
    assert len([error for error in errors if error]) == 1
    steps = "6" if errors[0] is None else "7"
    assert f'"steps": {steps},' in each.server.get("configmaps", "demo")["data"]["trainer.json"]
    spec = str(each.main()["metadata"]["annotations"][HASH_ANNOTATION])
    notes = each.server.get("configmaps", "demo")["metadata"]["annotations"]
    assert (notes[CLAIM_ANNOTATION], notes[HASH_ANNOTATION]) == (spec, spec)


def _rivals(site: Site, sets: list[dict[str, str]]) -> list[Exception | None]:
    """Submit the job with each of these at the same moment; what went wrong with each."""
    start = threading.Barrier(len(sets))
    errors: list[Exception | None] = [None for _ in sets]

    def submit(number: int) -> None:
        rendered, backend = site.rendered(sets[number]), KubernetesBackend(site.target, Cluster())
        start.wait()
        try:
            backend.submit(rendered, runs_root=Path("/runs"), workdir=Path("/w"), job_text="")
        except Exception as error:  # whatever it is, the test looks at it
            errors[number] = error

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(len(sets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def _claim(hash_: str, **about: object) -> Json:
    labels = {RUN_LABEL: "demo", "app.kubernetes.io/managed-by": "orchestrate"}
    return {"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "demo", "labels": labels, "annotations": {CLAIM_ANNOTATION: hash_},
                         **about}}  # fmt: skip


def test_another_submit_under_way_is_not_overtaken(site: Site) -> None:
    site.server.create(_claim("of another"))
    code, text = site.run("submit", "job.yaml")
    assert code == 1
    assert "another submit of demo, with other contents, is under way" in text
    assert site.server.list("pytorchjobs") == []


def test_the_claim_of_a_submit_that_died_is_not_for_ever(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.server.create(_claim("of another"))
    monkeypatch.setattr(kubernetes_apply, "CLAIM_S", -1.0)
    site.ok("submit", "job.yaml")
    assert site.server.get("configmaps", "demo")["data"]


def test_a_run_of_another_kind_keeps_its_name(site: Site, tmp_path: Path) -> None:
    site.ok("submit", "job.yaml")
    (tmp_path / "clusters.yaml").write_text(CLUSTERS.format(target="job"))
    code, text = site.run("submit", "job.yaml")
    assert code == 1
    assert "demo is there as a PyTorchJob" in text
    assert site.server.list("jobs") == []
    assert site.server.get("configmaps", "demo")["metadata"]["ownerReferences"]


def test_what_a_rival_has_made_anew_is_not_removed(site: Site) -> None:
    """Both have seen the failed run; the other one has replaced it already."""
    site.ok("submit", "job.yaml")
    failed = site.main()
    site.end("Failed")
    site.ok("submit", "job.yaml")
    new = site.main()["metadata"]["uid"]
    order = kubernetes_apply.Order(Cluster(), site.target, site.rendered({}))
    order.remove(failed)
    order.start()
    assert site.main()["metadata"]["uid"] == new
    order = kubernetes_apply.Order(Cluster(), site.target, site.rendered({"train.steps": "6"}))
    order.remove(failed)
    with pytest.raises(BackendError, match="just been submitted"):
        order.start()
    assert site.main()["metadata"]["uid"] == new
