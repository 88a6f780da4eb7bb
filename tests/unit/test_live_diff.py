"""Only what a submit would change is a difference to a live object."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cli.common import load_job
from orchestrator.live_diff import compared
from orchestrator.render import render

ROOT = Path(__file__).resolve().parent.parent.parent
SERVER = {
    "uid": "5f0c",
    "resourceVersion": "10",
    "generation": 1,
    "creationTimestamp": "2026-11-01T00:00:00Z",
    "managedFields": [{"manager": "orchestrate", "operation": "Apply"}],
}

Tree = dict[str, Any]


def manifest() -> Tree:
    """The Job of the demo, as it is rendered."""
    rendered = render(load_job(ROOT / "examples/demo.yaml", None, None, [], target="job").plan())
    tree = yaml.safe_load(rendered.files["job.yaml"])
    assert isinstance(tree, dict)
    return tree


def answered(tree: Tree) -> Tree:
    """As a server of 1.36 answers it: with defaults and its own fields."""
    answer = copy.deepcopy(tree)
    answer["metadata"] |= copy.deepcopy(SERVER) | {"namespace": "team-a"}
    answer["spec"] |= {"suspend": False, "manualSelector": False}
    pod = answer["spec"]["template"]["spec"]
    pod |= {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
    pod["containers"][0]["terminationMessagePath"] = "/dev/termination-log"
    return answer


def later(answer: Tree) -> Tree:
    """The same when a controller has worked on it."""
    live = copy.deepcopy(answer)
    live["metadata"] |= {"resourceVersion": "99", "generation": 3}
    live["metadata"]["managedFields"].append({"manager": "kube-controller-manager"})
    live["metadata"]["ownerReferences"] = [{"kind": "Job", "uid": "1"}]
    live["status"] = {"active": 2}
    return live


def test_what_server_and_controllers_write_is_no_difference() -> None:
    answer = answered(manifest())
    before, after = compared(later(answer), answer)
    assert before == after
    assert "terminationMessagePath" in after


def test_what_a_submit_would_change_is_one(tmp_path: Path) -> None:
    answer = answered(manifest())
    live = later(answer)
    live["spec"]["backoffLimit"] = 1
    live["metadata"]["annotations"]["orchestrate.dev/content-hash"] = "0" * 16
    before, after = compared(live, answer)
    assert before is not None
    changed = set(before.splitlines()) ^ set(after.splitlines())
    assert len(changed) == 4, changed
    assert "  backoffLimit: 1" in changed


def test_where_the_server_refuses_the_change_the_manifest_is_compared() -> None:
    tree = manifest()
    live = later(answered(tree))
    assert compared(live, tree)[0] == compared(live, tree)[1]
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "old"
    before, after = compared(live, tree)
    assert before is not None
    assert "image: old" in before
    assert "image: old" not in after


def test_a_list_of_another_length_is_shown_as_a_whole() -> None:
    tree = manifest()
    live = later(answered(tree))
    live["spec"]["template"]["spec"]["containers"][0]["args"].append("--more")
    before, _ = compared(live, tree)
    assert before is not None
    assert '"--more"' in before


@pytest.mark.parametrize("is_queued", [True, False])
def test_suspend_is_kueues_own_where_kueue_admits(is_queued: bool) -> None:
    tree = manifest()
    if is_queued:
        tree["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "main"
    answer = answered(tree)
    live = later(answer)
    live["spec"]["suspend"] = True
    before, after = compared(live, answer)
    assert (before == after) is is_queued


def test_suspend_of_a_pytorchjob_is_in_its_run_policy() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "main"}
    tree = {"kind": "PyTorchJob", "metadata": {"name": "a", "labels": labels, "uid": "1"}}
    live = tree | {"spec": {"runPolicy": {"suspend": True, "cleanPodPolicy": "Running"}}}
    wanted = tree | {"spec": {"runPolicy": {"cleanPodPolicy": "Running"}}}
    assert compared(live, wanted)[0] == compared(live, wanted)[1]


def test_an_object_that_is_not_there_is_missing() -> None:
    answer = answered(manifest())
    before, after = compared(None, answer)
    assert before is None
    assert "  uid:" not in after


def test_neither_object_is_changed_by_the_comparison() -> None:
    answer = answered(manifest())
    live = later(answer)
    copies = copy.deepcopy((live, answer))
    compared(live, answer)
    assert (live, answer) == copies
