"""What a batch script asks on the first node of a job: where to meet, and whether to go on.

    batch.py head ID PEER...     prints "ADDRESS PORT" of this node, where node 0 will listen; its
                                 address is that on the way to a peer
    batch.py head ID --interface NAME
                                 the same with the address of a network interface
    batch.py head ID --host-suffix SUFFIX NODE
                                 the same with the address of the node's name with that ending
    batch.py head ID --address-family ipv4|ipv6 ...
                                 the same with an address of this kind alone
    batch.py next RUN_DIR ID CODE FAILURES REQUEUES DEADLINE_S
                                 prints "again CODE" if the job is to be started again, "end CODE"
                                 if not, with the code that the nodes agreed on

ID is JOB.RESTARTS, by which node.py claims an attempt.
Standard library only, like node.py: it travels with the run folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import socket
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

SIOCGIFADDR = 0x8915  # linux/sockios.h
EXIT_DONE, EXIT_REQUEUE, EXIT_CONFIGURATION = 0, 75, 78
PORTS = range(20000, 32000)  # below the ephemeral range of Linux, 32768 to 60999 (ip(7))


class Refused(Exception):
    """Ends this program with a code and a message."""


def main(argv: list[str]) -> int:
    if argv[:1] == ["head"]:
        return head(argv[1], argv[2:])
    run_dir, ident, code, *budgets = argv[1:]
    failures, requeues, deadline_s = int(budgets[0]), int(budgets[1]), float(budgets[2])
    agreed, age_s = look_up(Path(run_dir), ident, int(code))
    failed, requeued = past_restarts(Path(run_dir), ident)
    again, why = decide(agreed, failed, requeued, failures, requeues)
    if again and 0 < deadline_s < age_s:
        again, why = False, f"the deadline of {deadline_s:g} s is over"
    print(f"[batch] {why}", file=sys.stderr)
    print("again" if again else "end", agreed)
    return 0


def head(ident: str, peers: list[str]) -> int:
    """Prints where node 0 will listen; the exit code."""
    family = ""
    if peers[0] == "--address-family":
        _, family, *peers = peers
    try:
        address = own_address(peers, family)
        print(address, free_port(address, ident))
    except Refused as refused:
        code, text = refused.args
        print(f"[batch] {socket.gethostname()}: {text}", file=sys.stderr)
        return int(code)
    return 0


def own_address(peers: list[str], family: str = "") -> str:
    """This node's address on the way to another node, by the first name that leads there.

    Nothing is sent: connecting a UDP socket only asks the kernel for the route. An address stays
    an address and is never turned into a name. Raises Refused where only a loopback
    address is found, as where /etc/hosts gives a node's own name one, or one that holds on one
    cable only (IPv6 link-local: it means nothing without the name of this node's interface).

    Args:
        peers: names and addresses of other nodes; "localhost" alone, or an option with its words.
        family: ipv4 or ipv6; "" for either.
    """
    if peers == ["localhost"]:
        return "127.0.0.1"
    if peers[0] == "--interface":
        return interface_address(peers[1], family)
    if peers[0] == "--host-suffix":
        return named_address(peers[2] + peers[1], family)
    for address in ways(peers):
        if is_routable(address) and is_of(address, family):
            return address
    raise Refused(
        1,
        f"no {kind_word(family)}address that other nodes can reach was found on the way to "
        f"{' or '.join(peers)}. The name must resolve here, and not to a loopback or link-local "
        "address: look at /etc/hosts.",
    )


def ways(peers: list[str]) -> Iterator[str]:
    """This node's address on the way to each address of each peer that it can reach."""
    for family, kind, _, _, target in (found for peer in peers for found in resolve(peer)):
        with socket.socket(family, kind) as probe:
            try:
                probe.connect(target)
            except OSError:
                continue
            yield str(probe.getsockname()[0])


def is_of(address: str, family: str) -> bool:
    """Whether an address is of a family, ipv4 or ipv6; any is of ""."""
    return not family or (":" in address) == (family == "ipv6")


def kind_word(family: str) -> str:
    return {"ipv4": "IPv4 ", "ipv6": "IPv6 "}.get(family, "")


def is_routable(address: str) -> bool:
    """Whether other nodes can reach it by the address alone."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return not ip.is_loopback and not (ip.version == 6 and ip.is_link_local)


def interface_address(name: str, family: str = "") -> str:
    """The first address of an interface of this node, IPv4 before IPv6; raises Refused."""
    for address in addresses_of(name):
        if is_of(address, family):
            return address
    raise Refused(
        EXIT_CONFIGURATION,
        f"the interface {name!r} has no {kind_word(family)}address here; interfaces of this node: "
        f"{interface_words()}. Correct network.interface.",
    )


def named_address(name: str, family: str) -> str:
    """The address of this node that a name means, IPv4 before IPv6; raises Refused."""
    found = sorted({str(target[0]) for *_, target in resolve(name)}, key=lambda a: (":" in a, a))
    own = {address for _, one in socket.if_nameindex() for address in addresses_of(one)}
    for address in found:
        if address in own and is_routable(address) and is_of(address, family):
            return address
    raise Refused(
        EXIT_CONFIGURATION,
        f"{name!r} means {', '.join(found) or 'nothing'} here, and no {kind_word(family)}address "
        "of this node that others can reach; interfaces of this node: "
        f"{interface_words()}. Correct network.host_suffix, or the name in /etc/hosts.",
    )


def addresses_of(interface: str) -> list[str]:
    """The addresses of an interface of this node, IPv4 before IPv6, none that is link-local."""
    found = []
    request = struct.pack("16s24x", interface.encode())  # struct ifreq, netdevice(7)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
        contextlib.suppress(OSError),  # no such interface, or it has no IPv4 address
    ):
        found.append(socket.inet_ntoa(fcntl.ioctl(probe, SIOCGIFADDR, request)[20:24]))
    table = Path("/proc/net/if_inet6")
    lines = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    for digits, *_, scope, _, name in lines:
        if (
            name == interface and scope != "20"
        ):  # link-local (Linux, net/ipv6.h, IPV6_ADDR_LINKLOCAL)
            found.append(str(ipaddress.ip_address(bytes.fromhex(digits))))
    return found


def interface_words() -> str:
    """The interfaces of this node and their addresses, in words."""
    names = [name for _, name in socket.if_nameindex()]
    return "; ".join(f"{name}: {', '.join(addresses_of(name)) or 'no address'}" for name in names)


Resolved = list[tuple[int, int, int, str, tuple[object, ...]]]


def resolve(name: str) -> Resolved:
    try:
        return list(socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM))
    except OSError:
        return []


def free_port(address: str, seed: str) -> int:
    """A port that is free on this node now, the same for the same job unless it is taken."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    first = zlib.crc32(seed.encode())
    for step in range(500):
        port = PORTS[(first + step) % len(PORTS)]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise Refused(1, f"no free port among 500 between {PORTS[0]} and {PORTS[-1]} on {address}")


def look_up(run_dir: Path, ident: str, code: int) -> tuple[int, float]:
    """The code that the nodes of attempt `ident` agreed on (`code` where they left none), and how
    many seconds ago this job's first attempt was claimed (0 without one)."""
    ages_s = [0.0]
    for owner in (run_dir / "attempts").glob("[0-9]*/owner.json"):
        claimed_by = str(read_json(owner).get("job", ""))
        if claimed_by.partition(".")[0] == ident.partition(".")[0]:
            ages_s.append(time.time() - owner.stat().st_mtime)
        if claimed_by == ident:
            agreed = read_json(owner.with_name("end.json")).get("code")
            code = agreed if isinstance(agreed, int) else code
    return code, max(ages_s)


def past_restarts(run_dir: Path, ident: str) -> tuple[int, int]:
    """How often this job was started again after a failure, and how often for other reasons.

    The script notes each restart that it asks for, as "ID CODE", and as "ID void" if Slurm refused
    it. Slurm's own count has those too
    that Slurm made by itself: after preemption, or for a lost node, though the nodes that were left
    had ended with the code of a failure.
    """
    job, _, restarts = ident.partition(".")
    try:
        text = (run_dir / "slurm-requeues").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        text = ""
    lines = (line.rpartition(" ") for line in text.splitlines() if line.startswith(f"{job}."))
    asked = {asked_by: code for asked_by, _, code in lines}  # the last word of each counts
    failed = sum(code not in (str(EXIT_REQUEUE), "void") for code in asked.values())
    return failed, int(restarts) - failed


def read_json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def decide(code: int, failed: int, requeued: int, failures: int, requeues: int) -> tuple[bool, str]:
    """Whether a job that ended with `code` is started again, and why.

    Args:
        failed: how often it was started again after a failure.
        requeued: how often it was started again for other reasons.
        failures, requeues: how often it may be.
    """
    if code in (EXIT_DONE, EXIT_CONFIGURATION):
        return False, "finished" if code == EXIT_DONE else "a configuration error is never repeated"
    if code == EXIT_REQUEUE:
        return requeued < requeues, f"requeue {requeued + 1} of {requeues}"
    return failed < failures, f"failure {failed + 1} of {failures} with code {code}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
