"""What pods see and what their controllers do, by the rendered manifests; no process is started."""

from __future__ import annotations

import pytest

from k8s.controllers import Do, controller_of
from k8s.manifests import KINDS, objects_of
from k8s.pods import expand, pods_of

ANEW = {"pytorchjob": Do.POD_ANEW, "job": Do.POD_ANEW, "jobset": Do.ALL_ANEW,
        "trainjob": Do.ALL_ANEW}  # fmt: skip
NUM_NODES = 2


# From the kubelet's own table, third_party/forked/golang/expansion/expand_test.go.
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$(VAR_A)", "A"),
        ("___$(VAR_B)___", "___B___"),
        ("$(VAR_A)$(VAR_B)", "AB"),
        ("$$(VAR_B)_$(VAR_A)", "$(VAR_B)_A"),
        ("$$$(VAR_B)_$(VAR_A)", "$B_A"),
        ("f000-$$VAR_A", "f000-$VAR_A"),
        ("foo\\$(VAR_C)bar", "foo\\$(VAR_C)bar"),
        ("$?_boo_$!", "$?_boo_$!"),
        ("$VAR_A", "$VAR_A"),
        ("--$$(VAR_A", "--$(VAR_A"),
        ("$()", "$()"),
        ("$(VAR_DNE)", "$(VAR_DNE)"),
        ("$", "$"),
    ],
)
def test_references_are_expanded_as_the_kubelet_does(text: str, value: str) -> None:
    assert expand(text, {"VAR_A": "A", "VAR_B": "B"}) == value


@pytest.mark.parametrize("target", KINDS)
def test_each_pod_is_told_its_own_number_and_the_name_of_node_0(target: str) -> None:
    pods = pods_of(objects_of(target))
    numbers = []
    for pod in pods:
        words = pod.argv("10.0.0.9")
        offset = (
            words[words.index("--node-rank-offset") + 1] if "--node-rank-offset" in words else "0"
        )
        numbers.append(int(pod.own_env("10.0.0.9")["ORCHESTRATE_NODE_RANK"]) + int(offset))
        assert words[words.index("--head") + 1] in pods[0].all_names()
        assert words[words.index("--address") + 1] == "10.0.0.9"
    assert numbers == list(range(NUM_NODES))


@pytest.mark.parametrize("target", KINDS)
def test_no_name_of_torchruns_is_told_twice(target: str) -> None:
    """What an operator injects wins over the container's own value."""
    for pod in pods_of(objects_of(target)):
        own = {entry["name"] for entry in pod.container["env"]}
        assert not own & (pod.injected.keys() - {"PYTHONUNBUFFERED"})


@pytest.mark.parametrize("code", [1, 78])
@pytest.mark.parametrize("target", KINDS)
def test_what_would_fail_again_is_not_repeated(target: str, code: int) -> None:
    assert controller_of(objects_of(target)).ended(1, code) is Do.FAILED


@pytest.mark.parametrize("code", [129, 203, 207])
@pytest.mark.parametrize("target", KINDS)
def test_what_is_worth_repeating_is_repeated(target: str, code: int) -> None:
    assert controller_of(objects_of(target)).ended(1, code) is ANEW[target]


@pytest.mark.parametrize("target", ["job", "jobset", "trainjob"])
def test_restarts_that_the_launcher_does_not_see_are_bounded(target: str) -> None:
    """Two failures and two requeues are five attempts, each after two starts in vain at most."""
    controller, starts = controller_of(objects_of(target)), 5 * 3
    ends = [controller.ended(node, 137) for _ in range(20) for node in range(NUM_NODES)]
    whole = ANEW[target] is Do.ALL_ANEW
    assert ends.index(Do.FAILED) == (starts - 1 if whole else starts * NUM_NODES)


@pytest.mark.parametrize("target", ["job", "jobset", "trainjob"])
def test_an_eviction_costs_nothing_by_itself(target: str) -> None:
    controller = controller_of(objects_of(target))
    ends = {controller.ended(1, 143, disrupted=True) for _ in range(50)}
    assert ends == {Do.POD_ANEW}


@pytest.mark.parametrize("target", KINDS)
def test_a_run_is_done_when_its_pods_are(target: str) -> None:
    controller = controller_of(objects_of(target))
    assert controller.ended(1, 0) is Do.NOTHING
    assert controller.ended(0, 0) is Do.DONE
