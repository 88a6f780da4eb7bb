"""The values that a sharded model starts from: those of rank 0, whatever the number of ranks.

With deferred initialisation no rank ever holds the whole model: it is built without memory, spread,
and filled one parameter at a time. A model of the user's is built whole in rank 0's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.agreement import agree, facts_of_model
from trainer.config import TrainerConfig
from trainer.full_state import put
from trainer.materialize import assert_tied, materialize, ties_of
from trainer.model import build_hollow, build_whole, first_value

MOST_LEVELS = 8  # of lists in lists that are searched for tensors; a list may hold itself


class StartingValues:
    """A model to be spread, and how it gets its values afterwards.

    model: on the meta device, to be spread and then given to put_into; or on the CPU with its
    values in it already.
    """

    def __init__(self, model: nn.Module, value_of: Callable[[str, Tensor], Tensor] | None) -> None:
        self.model = model
        self._value_of = value_of
        self._ties = ties_of(model)

    def put_into(self, model: nn.Module, home: torch.device, device: torch.device) -> None:
        """Give the spread model values, parameters on `home`, buffers on `device`; a collective."""
        if self._value_of is not None:
            materialize(model, home)
            for name, target in [*model.named_parameters(), *model.named_buffers()]:
                put(target, self._value_of(name, target))
            _move_buffers(model, device)
        assert_tied(model, self._ties)


def _move_buffers(model: nn.Module, device: torch.device) -> None:
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))


def starting_values(config: TrainerConfig, vocab_size: int, device: torch.device) -> StartingValues:
    """The built model; a collective. Raises what build_whole raises."""
    deferred = config.parallelism.fsdp.deferred_init and config.parallelism.fsdp.version == 2
    if deferred and config.model.factory is None:
        return StartingValues(build_hollow(config, vocab_size), _first_values(config))
    if not deferred or dist.get_rank() == 0:
        whole: nn.Module | None = build_whole(config, vocab_size)
    else:
        whole = None
    hollow = _hollow_or_none(config, vocab_size) if deferred else None
    if not _all_ranks_have(hollow, device):
        return StartingValues(_whole_everywhere(whole, config, vocab_size, device), None)
    assert hollow is not None
    agree(facts_of_model(hollow))
    return StartingValues(hollow, _given_out(whole, device))


def _first_values(config: TrainerConfig) -> Callable[[str, Tensor], Tensor]:
    layers, seed = config.model.layers, config.seed
    return lambda name, target: first_value(name, target.shape, layers, seed)


def _given_out(whole: nn.Module | None, device: torch.device) -> Callable[[str, Tensor], Tensor]:
    """Rank 0's value of a parameter or buffer, on `device`; whole is None on the other ranks."""
    held: dict[str, Tensor] = {}
    if whole is not None:
        held = {**dict(whole.named_parameters()), **dict(whole.named_buffers())}

    def value_of(name: str, target: Tensor) -> Tensor:
        if held:
            value = held[name].detach().to(device)
        else:
            value = torch.empty(target.shape, dtype=target.dtype, device=device)
        dist.broadcast(value, 0)
        return value

    return value_of


def _hollow_or_none(config: TrainerConfig, vocab_size: int) -> nn.Module | None:
    """The model on the meta device, None if it cannot be made so."""
    try:
        model = build_hollow(config, vocab_size)
    except Exception:  # a user's code may raise anything where a number has no value
        return None
    held = [*model.parameters(), *model.buffers()]
    # A tensor that is neither would never get a value.
    stray = any(_holds_stray(module) for module in model.modules())
    return None if stray or not all(value.is_meta for value in held) else model


def _holds_stray(module: nn.Module) -> bool:
    """Whether an attribute is, or has in lists and dictionaries, a tensor that torch can't see."""
    seen_by_torch = ("_parameters", "_buffers", "_modules")
    return any(
        _holds_tensor(value, MOST_LEVELS)
        for name, value in vars(module).items()
        if name not in seen_by_torch
    )


def _holds_tensor(value: object, levels: int) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)) and levels > 0:
        return any(_holds_tensor(item, levels - 1) for item in value)
    return isinstance(value, Tensor)


def _all_ranks_have(model: nn.Module | None, device: torch.device) -> bool:
    have = torch.tensor(int(model is not None), device=device)
    dist.all_reduce(have, dist.ReduceOp.MIN)
    return bool(have.item())


def _whole_everywhere(
    whole: nn.Module | None, config: TrainerConfig, vocab_size: int, device: torch.device
) -> nn.Module:
    """The whole model on each rank's CPU, with rank 0's values."""
    model = build_whole(config, vocab_size) if whole is None else whole
    agree(facts_of_model(model))
    with torch.no_grad():
        for value in [*model.parameters(), *model.buffers()]:
            sent = value.to(device)
            dist.broadcast(sent, 0)
            value.copy_(sent)
    return model
