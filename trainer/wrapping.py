"""Which modules of a model are sharded one by one; the rest is one more unit, the model itself.

A unit's parameters are gathered when it begins and dropped when it ends: many small units cost
time, one large unit costs memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from trainer.config import WrapConfig
from trainer.contract import ConfigurationError
from trainer.materialize import Place, ties_of
from trainer.model import GPT

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)  # never called


def units_of(model: nn.Module, wrap: WrapConfig) -> list[nn.Module]:
    """The modules to shard one by one, each after those inside it; never the model itself.

    Raises ConfigurationError where there are none such as asked for, or where they would tear
    apart what the model ties.
    """
    finders = {"block": _blocks, "class": _by_class, "size": _by_size}
    chosen = {id(module) for module in finders[wrap.by](model, wrap)}
    units = [module for module in _inside_out(model) if id(module) in chosen]
    _refuse_torn_ties(model, units)
    return units


def _inside_out(model: nn.Module) -> list[nn.Module]:
    """All modules below the model, each after those inside it."""
    found: dict[int, nn.Module] = {}

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if id(child) not in found:
                visit(child)
                found[id(child)] = child

    visit(model)
    return list(found.values())


def _blocks(model: nn.Module, _wrap: WrapConfig) -> Iterable[nn.Module]:
    if isinstance(model, GPT):
        return model.blocks
    blocks = [item for each in _outermost_lists(model) for item in _items(each)]
    if not blocks:
        raise ConfigurationError(
            "parallelism.wrap.by: the model of train.model.factory has no nn.ModuleList whose"
            " modules could be its blocks; write by: size, or by: class with some of the classes"
            f" that there are: {', '.join(_classes(model))}"
        )
    return blocks


def _outermost_lists(module: nn.Module) -> Iterator[nn.ModuleList]:
    """Such as those of an encoder and of a decoder, but not those inside a block."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield child
        else:
            yield from _outermost_lists(child)


def _items(container: nn.Module) -> Iterator[nn.Module]:
    """The modules with parameters in a list, and in the lists and dictionaries right inside it."""
    for child in container.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _items(child)
        elif not isinstance(child, CONTAINERS) and next(child.parameters(), None) is not None:
            yield child


def _by_class(model: nn.Module, wrap: WrapConfig) -> Iterable[nn.Module]:
    there = _classes(model)
    unknown = [name for name in wrap.classes if name not in there]
    if unknown:
        raise ConfigurationError(
            f"parallelism.wrap.classes: the model has no module of class {', '.join(unknown)}"
            f" (allowed: {', '.join(there)})"
        )
    return [module for module in _inside_out(model) if type(module).__name__ in wrap.classes]


def _by_size(model: nn.Module, wrap: WrapConfig) -> Iterable[nn.Module]:
    """From the inside out, each module that is large enough without the units inside it.

    One that holds a tied parameter in one place, and not in the others, is left out.
    """
    ties = ties_of(model)
    units: list[nn.Module] = []
    in_units: set[int] = set()
    for module in _inside_out(model):
        own = {id(p): p.numel() for p in module.parameters() if id(p) not in in_units}
        fits = not isinstance(module, CONTAINERS) and not _tears(module, ties)
        if fits and sum(own.values()) >= wrap.min_parameters:
            units.append(module)
            in_units.update(own)
    return units


def _tears(module: nn.Module, ties: list[list[Place]]) -> bool:
    inside = {id(part) for part in module.modules()}
    return any(len({id(place.module) in inside for place in held}) > 1 for held in ties)


def _classes(model: nn.Module) -> list[str]:
    modules = (module for module in _inside_out(model) if not isinstance(module, CONTAINERS))
    return sorted({type(module).__name__ for module in modules})


def _refuse_torn_ties(model: nn.Module, units: list[nn.Module]) -> None:
    """A parameter that two units hold would be sharded twice, and trained as two."""
    unit_of = {id(module): id(model) for module in model.modules()}
    for unit in reversed(units):
        unit_of |= {id(module): id(unit) for module in unit.modules()}
    for held in ties_of(model):
        if len({unit_of[id(place.module)] for place in held}) > 1:
            names = " and ".join(f"{place.path}.{place.attribute}" for place in held)
            raise ConfigurationError(
                f"parallelism.wrap: {names} are one parameter, and would lie in units of their own;"
                " leave both of their modules out, or wrap a module that holds both"
            )
