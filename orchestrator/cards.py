"""Tables of cards and links, as their makers' data sheets describe them: data/cards.yaml and
data/links.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.source import parse_document, read_bytes
from orchestrator.units import parse_size

FOLDER = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Card:
    """A kind of GPU, or one core of a CPU.

    Args:
        source: title and year of what says so.
        memory_bytes: None where it is not the card's own.
        memory_is_sold: whether that is the name's decimal number, not what the driver reports.
        peak: operations per second by format (fp32, tf32, bf16, fp16), without sparsity.
        memory_bandwidth: bytes per second.
        link: name of the link between cards of a node; "" where it depends on the machine.
        overlap: share of the computation that communication can hide behind.
        unit_overhead_s: seconds of the host for each sharded unit and pass.
        aliases: other names, such as those that sites give to Slurm.
    """

    name: str
    source: str
    memory_bytes: int | None
    peak: Mapping[str, float]
    memory_bandwidth: float | None
    link: str = ""
    overlap: float = 1.0
    unit_overhead_s: float = 0.0
    aliases: tuple[str, ...] = field(default=())
    memory_is_sold: bool = False

    @property
    def maker(self) -> str:
        """Who makes it; what runs on one card of a maker runs on the others."""
        others = {"mi": "AMD", "gaudi": "Habana", "max": "Intel", "cpu": ""}
        return next((one for start, one in others.items() if self.name.startswith(start)), "NVIDIA")


@dataclass(frozen=True)
class Link:
    """A way between GPUs.

    Args:
        bandwidth: bytes per second in one direction, of one GPU inside a node, of all that a node
            has between nodes.
        latency_s: of one message.
    """

    name: str
    bandwidth: float
    latency_s: float
    source: str


FORMATS = ("fp32", "tf32", "bf16", "fp16")


@cache
def cards() -> dict[str, Card]:
    """Return all cards by name."""
    return {name: _card(name, entry) for name, entry in _table("cards").items()}


@cache
def links() -> dict[str, Link]:
    """Return all links by name."""
    return {name: Link(name, **entry) for name, entry in _table("links").items()}


def _table(name: str) -> dict[str, dict[str, Any]]:
    path = FOLDER / f"{name}.yaml"
    table: dict[str, dict[str, Any]] = parse_document(read_bytes(path), path.name).data[name]
    return table


def _card(name: str, entry: Mapping[str, Any]) -> Card:
    size = entry.get("gpu_memory")
    return Card(
        name=name,
        source=entry["source"],
        memory_bytes=parse_size(size) if size else None,
        peak={key: float(entry[key]) for key in FORMATS if key in entry},
        memory_bandwidth=entry.get("memory"),
        link=entry.get("link", ""),
        overlap=entry.get("overlap", 1.0),
        unit_overhead_s=entry.get("unit_overhead_s", 0.0),
        aliases=tuple(entry.get("aliases", ())),
        memory_is_sold=size is not None and not size.endswith("MiB"),
    )


def card_of(name: str) -> Card | None:
    """Return a card by its name or one of its aliases, however they are spelt; None if there is
    none.

    Args:
        name: such as `h100-sxm`, `NVIDIA-A100-SXM4-80GB` or what a site calls its GPUs.
    """
    wanted = plain_name(name)
    for card in cards().values():
        if wanted in (plain_name(known) for known in (card.name, *card.aliases)):
            return card
    return None


def similar_cards(name: str) -> list[str]:
    """Return the cards that a name which is none may mean: those of the same series."""
    series = plain_name(name).partition("-")[0]
    return [known for known in cards() if known.partition("-")[0] == series]


def plain_name(name: str) -> str:
    """Return a name without the maker, and with one kind of separator."""
    return re.sub(r"^(nvidia|amd|intel|tesla)-", "", re.sub(r"[\s_.]+", "-", name.lower()))
