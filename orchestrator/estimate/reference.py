"""Published accounts of memory by number of parameters alone, to compare the planner with."""

from __future__ import annotations

# Bytes of each parameter in mixed precision with Adam: 16-bit parameters and gradients, and fp32
# master, momentum and variance. Rajbhandari et al., "ZeRO" (2020), section 3.1.
NARROW, ADAM = 2, 12


def model_states(num_parameters: float, num_ranks: int, stage: int) -> float:
    """Return the bytes of a rank under a stage of ZeRO (0 to 3; 0 is plain data parallel).

    Stage 1 spreads the optimizer's state, 2 the gradients too, 3 the parameters too: table 1 of
    the paper.
    """
    shares = [num_ranks if stage >= needed else 1 for needed in (3, 2, 1)]
    each = (NARROW, NARROW, ADAM)
    return sum(num_parameters * own / share for own, share in zip(each, shares, strict=True))


def deepspeed_zero3(num_parameters: float, largest_layer: float, num_gpus: int) -> float:
    """Return what DeepSpeed's estimate_zero3_model_states_mem_needs says of one GPU, in bytes.

    All parameters sharded, nothing offloaded: the largest layer in two formats, and 18 bytes.
    """
    return 4 * largest_layer + 18 * num_parameters / num_gpus


def deepspeed_zero2(num_parameters: float, num_gpus: int) -> float:
    """Return what DeepSpeed's estimate_zero2_model_states_mem_needs says of one GPU, in bytes."""
    return 2 * num_parameters + 18 * num_parameters / num_gpus


def accelerate_training(num_parameters: float) -> float:
    """Return what `accelerate estimate-memory` says of training in bf16 with Adam, in bytes.

    It is the largest of what is held, not their sum: 8 bytes of 16.
    """
    return 8 * num_parameters


def layer_activations(
    sequence: int, micro: int, width: int, heads: int, kind: str = "none"
) -> float:
    """Return the bytes that a layer leaves in 16 bits, with dropout.

    kind: none, flash (also: selective recomputation of attention) or full. Korthikanti et al.,
    "Reducing Activation Recomputation in Large Transformer Models" (2022), table 2.
    """
    factor = {"none": 34 + 5 * heads * sequence / width, "flash": 34, "full": 2}[kind]
    return sequence * micro * width * factor
