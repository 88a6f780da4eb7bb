"""The device of this rank, and torch's module for its kind.

CPU and CUDA are tried. xpu (Intel, xccl), npu (Ascend, hccl) and mlu (Cambricon, cncl) are not:
there was no such machine. They go by the same few calls, which torch asks of each kind of device.
"""

from __future__ import annotations

import importlib
import socket
from typing import TYPE_CHECKING, Any

from trainer.contract import ConfigurationError, Contract

if TYPE_CHECKING:  # torch takes a second to import
    import torch

# What adds a kind of device and its backend to torch, where torch lacks it. By the readme of
# github.com/Ascend/pytorch and by that of github.com/Cambricon/torch_mlu.
EXTENSIONS = {"npu": "torch_npu", "mlu": "torch_mlu"}


def device_of(kind: str, contract: Contract) -> torch.device:
    """This rank's device, which becomes the current one.

    kind: cpu, cuda, xpu, npu or mlu. Raises ConfigurationError if torch has no such devices here,
    or fewer than this node has ranks.
    """
    import torch

    if kind == "cpu":
        return torch.device("cpu")
    if kind in EXTENSIONS:
        _extend(kind)
    count = _count(kind)
    if contract.local_rank >= count:
        rank, name = contract.local_rank, _name(kind)
        raise ConfigurationError(
            "resources.gpus_per_node: give as many as a node has, or 0 to train on the CPU:"
            f" local rank {rank} needs {name} {rank}, but torch sees {count} {name}(s) on"
            f" {socket.gethostname()}"
        )
    device = torch.device(kind, contract.local_rank)
    torch.get_device_module(device).set_device(device)
    return device


def module_of(device: torch.device) -> Any:
    """torch.cuda, or what the kind of `device` has in its place; None for the CPU."""
    import torch

    return None if device.type == "cpu" else torch.get_device_module(device)


def _count(kind: str) -> int:
    import torch

    return int(torch.get_device_module(kind).device_count())


def _extend(kind: str) -> None:
    """Import what adds the kind to torch."""
    name = EXTENSIONS[kind]
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            f'network.backend: device "{kind}" needs the Python package {name}, which'
            f" {socket.gethostname()} cannot import ({error}); install the release of {name} for"
            " this torch into the environment or image of the ranks, or choose another backend"
        ) from error


def _name(kind: str) -> str:
    return "GPU" if kind in ("cuda", "xpu") else kind.upper()
