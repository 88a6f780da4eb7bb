"""Which ranks talk to one another, and whether over the network between nodes.

A rank's number is (copy * shards + part) * tensor + place, as the trainer numbers its mesh.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.estimate.figures import Transfer
from orchestrator.estimate.setting import Setting


@dataclass(frozen=True)
class Group:
    """Ranks that take part in one collective.

    Args:
        ranks_per_node: ranks of the group on a node.
        groups_per_node: such groups with ranks on one node.
    """

    size: int
    span: str
    ranks_per_node: int
    groups_per_node: int

    def transfer(
        self, kind: str, what: str, payload_bytes: int, count: int, **more: Any
    ) -> list[Transfer]:
        """Return the collectives; none where there is nothing to send, or nobody to send it to."""
        if self.size < 2 or payload_bytes == 0 or count == 0:
            return []
        places = (self.size, self.span, self.ranks_per_node, self.groups_per_node)
        return [Transfer(kind, what, payload_bytes, count, *places, **more)]


def everybody(setting: Setting) -> Group:
    """Return the group of all ranks."""
    return _group(setting, setting.num_ranks, 1)


def tensor_group(setting: Setting) -> Group:
    """Return the ranks that split a block."""
    return _group(setting, setting.tensor, 1)


def shard_group(setting: Setting, size: int | None = None) -> Group:
    """Return the ranks that share a copy, or the first `size` of them."""
    return _group(setting, size or setting.num_shards, setting.tensor)


def copies_group(setting: Setting) -> Group:
    """Return the ranks that hold the same part of each copy."""
    return _group(setting, setting.num_copies, setting.tensor * setting.num_shards)


def _group(setting: Setting, size: int, stride: int) -> Group:
    on_node = setting.ranks_per_node
    here = max(1, min(size, on_node // stride))
    span = "inside" if setting.num_nodes == 1 or size * stride <= on_node else "between"
    return Group(size, span, here, max(1, on_node // here))
