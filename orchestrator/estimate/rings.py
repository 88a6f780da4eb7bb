"""How long collectives take on a link: by a ring, and an all-reduce over nodes also by trees.

Messages are counted as NCCL counts them when it chooses (src/graph/tuning.cc, 2.27): of a ring's
steps only those from node to node wait for the network, and a pair of trees has the depth of the
logarithm of the nodes.
"""

from __future__ import annotations

from orchestrator.cards import Link
from orchestrator.estimate.figures import Transfer
from orchestrator.estimate.hardware import Hardware

# Of a link's bandwidth, what a pair of trees reaches (tuning.cc, Tree for AllReduce).
TREE_SHARE = 0.92


def seconds(transfer: Transfer, hardware: Hardware) -> float:
    """Return the time of all calls of a kind, one after another.

    An all-reduce of B bytes over N ranks takes 2(N-1) messages and 2(N-1)/N * B of bandwidth by a
    ring, and the other kinds half of it: Patarasuk and Yuan, "Bandwidth Optimal All-reduce
    Algorithms" (2009). A ring over several nodes goes as fast as its slowest part. NCCL takes trees
    for an all-reduce where they are faster; gloo has none.
    """
    link = hardware.inside if transfer.span == "inside" else hardware.between
    if link is None:
        return 0.0
    again = hardware.scatter_rounds if transfer.kind == "reduce_scatter" else 1
    ring_s = again * _ring_s(transfer, link, hardware.inside)
    if hardware.trees and transfer.kind == "all_reduce" and transfer.span == "between":
        return min(ring_s, _trees_s(transfer, link, hardware.inside))
    return ring_s


def _ring_s(transfer: Transfer, link: Link, inside: Link | None) -> float:
    hops = transfer.rounds * (transfer.group_size - 1)
    if transfer.span == "inside":
        return hops * transfer.count * link.latency_s + transfer.sent_bytes / link.bandwidth
    far = transfer.rounds * (transfer.num_nodes - 1)
    wait_s = far * link.latency_s + (hops - far) * (inside or link).latency_s
    moved_s = transfer.node_bytes / link.bandwidth
    return transfer.count * wait_s + max(moved_s, _inside_s(transfer.sent_bytes, transfer, inside))


def _trees_s(transfer: Transfer, link: Link, inside: Link | None) -> float:
    """Up and down two trees of nodes, each with half of the bytes; a node's ranks are a chain."""
    depth = (transfer.num_nodes - 1).bit_length()
    wait_s = 2 * depth * link.latency_s
    wait_s += 2 * (transfer.ranks_per_node - 1) * (inside or link).latency_s
    sent_bytes = 2 * transfer.payload_bytes / TREE_SHARE
    moved_s = sent_bytes * transfer.groups_per_node / link.bandwidth
    return transfer.count * wait_s + max(moved_s, _inside_s(sent_bytes, transfer, inside))


def _inside_s(sent_bytes: float, transfer: Transfer, link: Link | None) -> float:
    if link is None or transfer.ranks_per_node == 1:
        return 0.0
    return sent_bytes / link.bandwidth
