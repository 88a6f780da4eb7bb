"""Whether all ranks run the same: code, configuration, versions, data, and order of parameters.

Ranks that differ do not always fail. They may train something else in silence, as where collectives
are paired by the order of modules alone. So they are compared before the training.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from trainer.config import TrainerConfig
from trainer.contract import ConfigurationError

HERE = Path(__file__).resolve().parent

# What is compared, by the name that messages give it: lines in an order that counts.
Facts = Mapping[str, Sequence[str]]

CODE, FACTORY, CONFIGURATION, VERSIONS, DATA, ORDER, WEIGHTS = (
    "the trainer's code", "the code of train.model.factory", "the configuration", "the versions",
    "the data", "the order of modules and parameters", "the file of train.model.init",
)  # fmt: skip
ADVICE = {
    CODE: "install the same version on every node",
    FACTORY: "every node must see the same folder of the job file",
    CONFIGURATION: "every node must see the same run folder",
    VERSIONS: "use the same environment or image on every node",
    DATA: "every node must see the same files",
    WEIGHTS: "every node must see the same file",
    ORDER: "build the model alike on every rank: look for what depends on the rank, on the order of"
    " a set or on chance",
}


class Told(NamedTuple):
    """What one rank tells of itself: its host, and a hash of each fact."""

    host: str
    hashes: dict[str, str]


def facts_of_run(config: TrainerConfig, data: str) -> dict[str, list[str]]:
    """What can be told without the model. data: a fingerprint of what is trained on."""
    return {
        CODE: [f"{path.name} {_hash_of(path)}" for path in sorted(HERE.glob("*.py"))],
        FACTORY: _factory_code(config.model.factory),
        CONFIGURATION: _flattened(asdict(config)),
        VERSIONS: [f"Python {platform.python_version()}", f"torch {torch.__version__}"],
        DATA: [data],
    }


def facts_of_model(model: nn.Module) -> dict[str, list[str]]:
    """The order of the modules and parameters, by which collectives find one another."""
    modules = [
        f"{name or 'model'}: {type(module).__name__}" for name, module in model.named_modules()
    ]
    parameters = [
        f"{name}: {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        + ("" if value.requires_grad else ", frozen")
        for name, value in model.named_parameters()
    ]
    return {ORDER: modules + parameters}


def agree(facts: Facts) -> None:
    """Raise ConfigurationError, on all ranks, if ranks differ in one of the facts.

    A collective, and a second one where they differ, to show the first line that does.
    """
    hashes = {name: _hash("\n".join(lines).encode()) for name, lines in facts.items()}
    told: list[Told] = [Told("", {})] * dist.get_world_size()
    dist.all_gather_object(told, Told(socket.gethostname(), hashes))
    for name in facts:
        odd, rest = minority([rank.hashes[name] for rank in told])
        if odd:
            lines: list[list[str]] = [[]] * dist.get_world_size()
            dist.all_gather_object(lines, list(facts[name]))
            who = ", ".join(f"rank {rank} ({told[rank].host})" for rank in odd)
            raise ConfigurationError(
                f"{ADVICE[name]}: {who} and rank {', '.join(map(str, rest))} differ in {name}."
                f" First difference: {_difference(lines[odd[0]], lines[rest[0]])}"
            )


def minority(values: Sequence[object]) -> tuple[list[int], list[int]]:
    """The ranks whose value is not the commonest, and those whose value is; a tie goes to rank 0.

    values: one for each rank.
    """
    count = Counter(values)
    usual = max(values, key=lambda value: count[value])  # the first of equals
    odd = [rank for rank, value in enumerate(values) if value != usual]
    return odd, [rank for rank in range(len(values)) if rank not in odd]


def _difference(odd: Sequence[str], usual: Sequence[str]) -> str:
    pairs = zip_longest(odd, usual, fillvalue="nothing")
    mine, theirs = next(pair for pair in pairs if pair[0] != pair[1])
    return f"{mine!r} and {theirs!r}"


def _factory_code(factory: str | None) -> list[str]:
    """The file of the factory's module; none where it is not found: calling it will tell why."""
    if factory is None:
        return []
    try:
        spec = importlib.util.find_spec(factory.partition(":")[0])
    except (ImportError, AttributeError, ValueError):
        return []
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return []
    return [f"{Path(spec.origin).name} {_hash_of(Path(spec.origin))}"]


def _flattened(content: Mapping[str, Any], prefix: str = "") -> list[str]:
    lines: list[str] = []
    for key, value in content.items():
        if isinstance(value, dict):
            lines += _flattened(value, f"{prefix}{key}.")
        else:
            lines.append(f"{prefix}{key}: {json.dumps(value)}")
    return lines


def _hash_of(path: Path) -> str:
    return _hash(path.read_bytes())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
