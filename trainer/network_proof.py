"""Whether the ranks talk over the network that was promised: looked at once, after the first step.

NCCL tells its transports in its log; for gloo the kernel tells the interfaces of its connections.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from trainer import library_log
from trainer.config import TrainerConfig
from trainer.connections import Connection, by_interface, connections
from trainer.contract import Contract, given_variable
from trainer.limits import Limit
from trainer.metrics import Metrics
from trainer.peers import Peers, some
from trainer.transports import Report, added, promised_here, read_report, strangers

WHAT = "look at the network"
MOST_FAULTS = 64  # that the event holds


class WrongNetwork(RuntimeError):
    """The ranks talk over another network than was promised, and network.watch is stop."""


@dataclass(frozen=True)
class Told:
    """What one rank has found: its transports, or why it knows none.

    interfaces: those that it was told to use, which may have another name on another node.
    """

    who: str
    interfaces: list[str]
    report: Report = field(default_factory=Report)
    unknown: str = ""


@dataclass(frozen=True)
class Judgement:
    """agrees: None where nothing is known or nothing promised. faults: which rank, and what."""

    promised: list[str]
    agrees: bool | None
    faults: list[str]


class Proof:
    """One rank's part of the look; a collective over `peers` at the first step of an attempt."""

    def __init__(
        self, config: TrainerConfig, contract: Contract, peers: Peers, metrics: Metrics
    ) -> None:
        self._config, self._contract = config, contract
        self._peers, self._metrics = peers, metrics
        ranks = range(contract.world_size)
        self._nodes = [rank // config.ranks_per_node for rank in ranks]
        self._open = config.network.watch != "off" and contract.world_size > 1

    def after_step(self, step: int) -> None:
        """Look, once. Raises WrongNetwork, on all ranks, where network.watch is stop."""
        if self._open:
            self._open = False
            self._look(step)

    def _look(self, step: int) -> None:
        told = self._told()
        verdict = judge(self._config, self._contract.num_nodes, told)
        self._write(step, told, verdict)
        if not verdict.faults:
            return
        message = f"the network is not used as promised: {some(verdict.faults)}"
        if self._config.network.watch == "stop":
            raise WrongNetwork(f"{message}. network.watch: warn lets such an attempt go on")
        if self._peers.first:
            print(f"trainer: {message}", file=sys.stderr, flush=True)

    def _told(self) -> list[Told]:
        # A rank comes here when its first step is over, and the watchdog has its limit until then.
        self._peers.allow(Limit(self._config.first_step_timeout_s, "timeouts.first_step"))
        me = Told(str(self._peers.me), _wanted_interfaces(self._config))
        if self._config.uses_nccl:
            return self._peers.exchange(self._of_nccl(me), WHAT)
        if self._config.backend != "gloo":
            return self._peers.exchange(replace(me, unknown="its library tells nothing"), WHAT)
        return self._of_gloo(me)

    def _of_nccl(self, me: Told) -> Told:
        try:
            text = library_log.read_log()
        except library_log.Unreadable as error:
            return replace(me, unknown=str(error))
        if self._config.network.debug == "off":
            library_log.end_log(self._contract)
        report = read_report(text, self._nodes)
        unknown = "the library's log tells no transport" if report.empty else ""
        return replace(me, report=report, unknown=unknown)

    def _of_gloo(self, me: Told) -> list[Told]:
        """Which connections lead to another rank is known once all have told their addresses."""
        try:
            # The rendezvous store's may lead elsewhere, and carry no data.
            port = int(given_variable("MASTER_PORT") or 0)
            own, unknown = connections(ignored_port=port), ""
        except (OSError, ValueError) as error:
            own, unknown = [], f"its connections cannot be seen: {error}"
        spoken = self._peers.exchange({one.own.address for one in own}, WHAT)
        told = replace(me, unknown=unknown) if unknown else self._counted(me, own, spoken)
        return self._peers.exchange(told, WHAT)

    def _counted(
        self, me: Told, own: Sequence[Connection], spoken: Sequence[Collection[bytes]]
    ) -> Told:
        """spoken: the addresses of each rank."""
        mine, ranks = self._nodes[self._contract.rank], set().union(*spoken)
        pairs = zip(spoken, self._nodes, strict=True)
        near = set().union(*(addresses for addresses, node in pairs if node == mine))
        to_ranks = [one for one in own if one.other.address in ranks]
        try:
            report = Report(interfaces=by_interface(one.own.address for one in to_ranks))
        except OSError as error:
            return replace(me, unknown=f"its interfaces cannot be seen: {error}")
        for one in to_ranks:
            side = report.within if one.other.address in near else report.between
            side["gloo"] += 1
        unknown = "" if to_ranks else "it has no connection to another rank"
        return replace(me, report=report, unknown=unknown)

    def _write(self, step: int, told: Sequence[Told], verdict: Judgement) -> None:
        total = added(one.report for one in told)
        interfaces = [next(iter(one.report.interfaces.items()), None) for one in told]
        names = sorted({name for one in told for name in one.report.interfaces})
        self._metrics.event(
            "network",
            step,
            backend=self._config.backend,
            transports=dict(total.between),
            within=dict(total.within),
            promised=verdict.promised,
            agrees=verdict.agrees,
            interface=",".join(names) or None,
            addresses=[found[1] if found else None for found in interfaces],
            faults=verdict.faults[:MOST_FAULTS],
            unknown=some(f"{one.who}: {one.unknown}" for one in told if one.unknown) or None,
        )


def judge(config: TrainerConfig, num_nodes: int, told: Sequence[Told]) -> Judgement:
    """Compare what the ranks have told with the promises of the fabric and the interface."""
    network = config.network
    promised = promised_here(network.promises, num_nodes) if config.uses_nccl else []
    place = "between nodes" if num_nodes > 1 else "within the node"
    faults: list[str] = []
    compared = False
    for one in told:
        counts = one.report.between if num_nodes > 1 else one.report.within
        interfaces, wanted = one.report.interfaces, one.interfaces
        compared |= bool((promised and counts) or (wanted and interfaces))
        if promised and (odd := strangers(counts, promised)):
            words = f"{', '.join(odd)} {place}, and fabric {network.fabric} promises"
            faults.append(f"{one.who} uses {words} {' or '.join(promised)}")
        if wanted and (odd := sorted(set(interfaces) - set(wanted))):
            words = ", ".join(f"{name} ({interfaces[name]})" for name in odd)
            faults.append(f"{one.who} uses the interface {words}, not {' or '.join(wanted)}")
    return Judgement(promised, None if not compared else not faults, faults)


def _wanted_interfaces(config: TrainerConfig) -> list[str]:
    """By name, none where each node finds its own. An alias such as eth0:1 is eth0."""
    names = config.network.interface or ""
    if config.backend == "gloo":
        names = names or given_variable("GLOO_SOCKET_IFNAME")
    return [name.strip().partition(":")[0] for name in names.split(",") if name.strip()]
