"""The content of trainer.json: all that the bundled trainer needs, nothing about the cluster.

Units are resolved and defaults that depend on other keys are filled in. The keys are those of
trainer/config.py, which reads the file strictly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.units import parse_duration

if TYPE_CHECKING:
    from orchestrator.network_plan import NetworkPlan
    from orchestrator.spec import JobSpec
    from orchestrator.spec.data import Data
    from orchestrator.spec.model import Model
    from orchestrator.spec.parallelism import Parallelism
    from orchestrator.spec.train import Nonfinite

VERSION = 1
WHOLE_COPIES = ("ddp", "no_shard", "dp")  # strategies under which each rank has the whole state


def trainer_config(spec: JobSpec, network: NetworkPlan, mtbf_s: float) -> dict[str, Any]:
    """Return what trainer.json holds.

    Args:
        spec: the job.
        network: its network, with nothing left to choose.
        mtbf_s: mean time in seconds between failures of any of the job's nodes.
    """
    train, limits = spec.train, spec.limits
    ranks_per_node = spec.resources.num_ranks_per_node
    return {
        "version": VERSION,
        "name": spec.name,
        "num_ranks": spec.num_ranks,
        "world_sizes": [nodes * ranks_per_node for nodes in spec.node_sizes],
        "ranks_per_node": ranks_per_node,
        "device": network.device,
        "backend": network.backend,
        "network": network.for_trainer,
        "rendezvous_timeout_s": limits.rendezvous_s,
        "load_timeout_s": limits.load_s,
        "first_step_timeout_s": limits.first_step_s,
        "step_timeout_s": limits.step_s,
        "evaluation_timeout_s": limits.evaluation_s,
        "shutdown_timeout_s": limits.shutdown_s,
        "model": _model(train.model),
        "data": _data(train.data),
        "optimizer": train.optimizer.model_dump(mode="json"),
        "schedule": train.schedule.model_dump(mode="json"),
        "batch": train.batch.model_dump(mode="json"),
        "steps": train.steps,
        "evaluation": train.evaluation.model_dump(mode="json"),
        "seed": train.seed,
        "nonfinite": _nonfinite(train.nonfinite),
        "logging": train.logging.model_dump(mode="json"),
        "compile": train.compile,
        "parallelism": _parallelism(spec.parallelism, ranks_per_node),
        "checkpoint": _checkpoint(spec, mtbf_s),
    }


def _checkpoint(spec: JobSpec, mtbf_s: float) -> dict[str, Any]:
    checkpoint, whole = spec.checkpoint, spec.parallelism.strategy in WHOLE_COPIES
    layout = checkpoint.format
    return {
        **_interval(checkpoint.every, mtbf_s),
        "keep": checkpoint.keep,
        "keep_best": checkpoint.keep_best,
        "format": ("full" if whole else "sharded") if layout == "auto" else layout,
        "asynchronous": checkpoint.asynchronous,
        "on_failure": checkpoint.on_failure,
        "timeout_s": spec.timeouts.checkpoint,
        "resume": checkpoint.resume,
    }


def _interval(every: int | str, mtbf_s: float) -> dict[str, float | None]:
    """Steps, seconds, or what the trainer finds the best time from; the other two are None."""
    auto, steps = every == "auto", every if isinstance(every, int) else None
    return {
        "every_steps": steps,
        "every_s": None if auto or steps else parse_duration(every),
        "mtbf_s": mtbf_s if auto else None,
    }


def _parallelism(parallelism: Parallelism, ranks_per_node: int) -> dict[str, Any]:
    """All options; those that the strategy does not use have their defaults."""
    options: dict[str, Any] = parallelism.model_dump(mode="json")
    options["shard_group"] = parallelism.group(ranks_per_node)
    # A permission for the planner, which has judged it.
    del options["fsdp"]["across_nodes"]
    return options


def _nonfinite(nonfinite: Nonfinite) -> dict[str, Any]:
    return {"policy": nonfinite.policy, "limit": nonfinite.num_skips}


def _model(model: Model) -> dict[str, Any]:
    """Sizes with the preset filled in; a factory has none of its own but the context."""
    sizes = model.sizes
    return {
        "layers": sizes.layers if sizes else 0,
        "heads": sizes.heads if sizes else 0,
        "width": sizes.width if sizes else 0,
        "context": sizes.context if sizes else model.context,
        "vocab_size": model.vocab_size,
        "dropout": model.dropout,
        "tied": model.tied,
        "factory": model.factory,
        "args": model.args,
        "init": model.init,
    }


def _data(data: Data) -> dict[str, Any]:
    validation = data.validation
    return {
        "kind": data.kind,
        "paths": list(data.text or data.tokens or ()),
        "tokenizer": data.tokenizer,
        "dtype": data.dtype,
        "ignore_token": data.ignore_token,
        "samples": data.synthetic.samples if data.synthetic else None,
        "validation_fraction": validation.fraction,
        "validation_paths": list(validation.text or validation.tokens or ()),
        "workers": data.workers,
    }
