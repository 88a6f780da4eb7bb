"""Bytes that a rank holds at its peak, and what they are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

from orchestrator.estimate.activations import Head, Layer, head_of, layer_of, recomputing
from orchestrator.estimate.engines import Engine
from orchestrator.estimate.figures import Memory
from orchestrator.estimate.flat import Flat
from orchestrator.estimate.held import held
from orchestrator.estimate.ledger import Ledger
from orchestrator.estimate.outline import Outline
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.sharded import Sharded

L = TypeVar("L", bound=Ledger)


def memory(setting: Setting, outline: Outline, hardware_overhead_bytes: int = 0) -> Memory:
    """Return the peak of a step of the rank that has most (rank 0), from the second step on.

    Args:
        hardware_overhead_bytes: the device's context, and what the allocator cannot use.
    """
    ledger = ran(setting, outline, Ledger)
    moment, lines = ledger.peak
    return Memory(
        **lines,
        overhead=hardware_overhead_bytes,
        host=sum(held(setting, outline)) if setting.cpu_offload else 0,
        at=moment,
        moments=ledger.moments,
    )


def ran(setting: Setting, outline: Outline, kind: type[L]) -> L:
    """Return the ledger of a step."""
    setting = _of_one(setting)
    state, offloads = held(setting, outline), setting.cpu_offload
    ledger = kind(
        {
            "parameters": 0 if offloads else state.parameters,
            "optimizer": 0 if offloads else state.optimizer,
            "buffers": outline.buffer_bytes,
        }
    )
    engine = _engine_of(setting)(setting, outline, state, ledger)
    _step(setting, outline, engine, ledger)
    return ledger


def _of_one(setting: Setting) -> Setting:
    """Return what one GPU of a process gets, which splits its samples under dp."""
    if setting.replicas == 1:
        return setting
    return replace(setting, micro=math.ceil(setting.micro / setting.replicas), replicas=1)


def floor(setting: Setting, outline: Outline) -> int:
    """Return bytes that there are at the start of the backward pass beside what is held between
    steps, whatever is sharded how: of a step's peak a quick lower bound."""
    setting = _of_one(setting)
    layers, head = _layers(setting, outline), head_of(setting, outline)
    kept = sum(layer.kept for layer in layers)
    loss = head.kept + head.logits + head.floats + head.losses
    if not layers:
        return loss
    last = layers[-1]
    return kept + max(loss, head.stream + last.again + max(last.perceptron, last.attention))


def _engine_of(setting: Setting) -> type[Engine]:
    if not setting.uses_fsdp:
        return Engine
    return Sharded if setting.fsdp.version == 2 else Flat


def _step(setting: Setting, outline: Outline, engine: Engine, ledger: Ledger) -> None:
    """The last micro-batch of a step, and the optimizer's part; they hold most."""
    blocks = range(len(outline.units))
    again = [recomputing(setting, block) != "none" for block in blocks]
    layers = _layers(setting, outline)
    head = head_of(setting, outline)
    engine.begin()
    for block in blocks:
        ledger.unit()
        engine.forward(block)
        ledger.hold(activations=layers[block].kept)
        engine.forward_ended(block, again[block])
    _loss(head, engine, ledger, again)
    for block in reversed(blocks):
        _backward(block, layers[block], engine, ledger, again[block])
    engine.root_gradients()
    ledger.drop(activations=head.stream)
    engine.backward_ended(-1)
    engine.end()
    ledger.enter("optimizer")


def _layers(setting: Setting, outline: Outline) -> list[Layer]:
    """The figures of each block; those of equal ones are reckoned once."""
    known: dict[object, Layer] = {}
    found = []
    for block, unit in enumerate(outline.units):
        key = (recomputing(setting, block), *unit.activation_bytes.items())
        if key not in known:
            known[key] = layer_of(setting, outline, block)
        found.append(known[key])
    return found


def _loss(head: Head, engine: Engine, ledger: Ledger, again: list[bool]) -> None:
    """From the last block's output to its gradient; cross entropy has three tensors of logits."""
    ledger.hold(activations=head.kept)
    ledger.hold(logits=head.logits + head.floats + head.losses)
    ledger.drop(logits=head.logits + head.floats)
    engine.loss_known(again)
    ledger.enter("backward")
    ledger.pass_by(working=head.working)
    engine.backward(-1, False)
    ledger.hold(logits=2 * head.losses)
    ledger.drop(logits=2 * head.losses)
    if head.floats:
        ledger.hold(logits=head.logits)
        ledger.drop(logits=head.losses)
    engine.head_gradients()
    ledger.drop(logits=head.logits, activations=head.kept)
    ledger.hold(activations=head.stream)


def _backward(block: int, layer: Layer, engine: Engine, ledger: Ledger, again: bool) -> None:
    """A block, from its last activations to its first."""
    ledger.unit()
    engine.backward(block, again)
    ledger.hold(working=layer.again)
    ledger.pass_by(working=layer.perceptron)
    engine.gradients(block, 2 / 3)
    ledger.pass_by(working=layer.attention)
    ledger.drop(working=layer.again, activations=layer.kept)
    engine.gradients(block, 1 / 3)
    engine.backward_ended(block)
