"""What a warning says of a variable is what the ranks get."""

from __future__ import annotations

import itertools
import re

import pytest
from networks import judged, planned

from orchestrator.plan import LaunchPlan

HOLDS = re.compile(
    r"^(\w+) is '([^']*)' (by|in) (?:.*[ )],|network\.\w+,) and '([^']*)' here, which holds$"
)
# Backend, its own variable, what the launcher sets it to by a key of `network`, and that key.
KEYS = [
    ("gloo", "GLOO_SOCKET_IFNAME", "eth0", "interface: eth0"),
    ("nccl", "NCCL_SOCKET_IFNAME", "=eth0", "interface: eth0"),
    ("nccl", "GLOO_SOCKET_IFNAME", "eth0", "interface: eth0"),
    ("nccl", "NCCL_SOCKET_FAMILY", "AF_INET6", "address_family: ipv6"),
    ("'cpu:gloo,cuda:nccl'", "NCCL_SOCKET_IFNAME", "=eth0", "interface: eth0"),
    ("'cpu:gloo,cuda:nccl'", "GLOO_SOCKET_IFNAME", "eth0", "interface: eth0"),
    ("xccl", "CCL_KVS_IFACE", "eth0", "interface: eth0"),
    ("hccl", "HCCL_SOCKET_IFNAME", "=eth0", "interface: eth0"),
]
SECTIONS = (("env",), ("network.env",), ("env", "network.env"))


@pytest.mark.parametrize("fabric", [None, "slingshot"])
@pytest.mark.parametrize("sections", SECTIONS)
@pytest.mark.parametrize(("backend", "name", "own", "key"), KEYS)
def test_what_is_said_to_hold_holds(
    backend: str, name: str, own: str, key: str, sections: tuple[str, ...], fabric: str | None
) -> None:
    """By whatever the launcher sets itself, the fabric and both places where the user may."""
    if fabric is not None and "nccl" not in backend:
        return
    values = (own, "other", *(["hsn"] * (fabric is not None)))
    for target, value in itertools.product(("slurm", "local"), values):
        text = f"network: {{backend: {backend}, {key}}}\n"
        sets = [f"{section}.{name}={value}" for section in sections]
        plan = planned(text, *sets, fabric=fabric, target=target)
        found = judged(text, *sets, fabric=fabric, target=target)
        assert found.faults == ()
        claims = [HOLDS.match(warning.message) for warning in found.warnings]
        for claim in filter(None, claims):
            assert dict(plan.env)[claim[1]] == claim[4], claim[0]
        by_key = [claim for claim in claims if claim and claim[3] == "by"]
        is_set = value != own and target != "local"  # whose simulated nodes have lo
        assert [claim[1] for claim in by_key] == [name] * len(sections) * is_set
        assert {claim[2] for claim in by_key} <= {own}


def interface(plan: LaunchPlan) -> str | None:
    found: str | None = plan.trainer["network"]["interface"]
    return found


@pytest.mark.parametrize("section", ["env", "network.env"])
@pytest.mark.parametrize(
    ("backend", "variable", "expected"),
    [
        ("nccl", "NCCL_SOCKET_IFNAME==eth1", "eth1"),
        ("nccl", "NCCL_SOCKET_IFNAME==eth1,eth2:0", "eth1,eth2:0"),
        ("nccl", "NCCL_SOCKET_IFNAME=eth", None),  # the beginning of a name
        ("nccl", "NCCL_SOCKET_IFNAME=^docker0,lo", None),
        ("nccl", "GLOO_SOCKET_IFNAME=eth1", "eth0"),
        ("gloo", "GLOO_SOCKET_IFNAME=eth1", "eth1"),
        ("gloo", "NCCL_SOCKET_IFNAME==eth1", "eth0"),
        ("'cpu:gloo,cuda:nccl'", "NCCL_SOCKET_IFNAME==eth1", "eth1"),
    ],
)
def test_the_proof_compares_with_what_holds(
    backend: str, variable: str, expected: str | None, section: str
) -> None:
    text = f"network: {{backend: {backend}, interface: eth0}}\n"
    assert interface(planned(text, f"{section}.{variable}")) == expected
    assert interface(planned(text)) == "eth0"
