"""The job file: what may be in it, what is wrong with it, and what holds in the end.

A name is imported when it is asked for: a job file without faults needs neither the list of all
keys nor the JSON Schema nor the words of faults.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.source import expand, unexpanded
    from orchestrator.spec.checkpoint import Checkpoint
    from orchestrator.spec.cluster import Attempts, Network, Resources
    from orchestrator.spec.data import Data
    from orchestrator.spec.job import JobSpec
    from orchestrator.spec.keys import FieldInfo, children, fields, find_field
    from orchestrator.spec.model import Model
    from orchestrator.spec.parallelism import Ddp, Parallelism
    from orchestrator.spec.presets import PRESETS, ModelSizes
    from orchestrator.spec.resolve import Origin, ResolvedJob, resolve_job
    from orchestrator.spec.schema import json_schema
    from orchestrator.spec.timeouts import Timeouts
    from orchestrator.spec.train import Train

__all__ = [
    "PRESETS",
    "Attempts",
    "Checkpoint",
    "Data",
    "Ddp",
    "FieldInfo",
    "JobSpec",
    "Model",
    "ModelSizes",
    "Network",
    "Origin",
    "Parallelism",
    "ResolvedJob",
    "Resources",
    "Timeouts",
    "Train",
    "children",
    "expand",
    "fields",
    "find_field",
    "json_schema",
    "resolve_job",
    "unexpanded",
]

# Which module has which names, the same as above.
_HOMES = {
    "orchestrator.source": ("expand", "unexpanded"),
    "orchestrator.spec.checkpoint": ("Checkpoint",),
    "orchestrator.spec.cluster": ("Attempts", "Network", "Resources"),
    "orchestrator.spec.data": ("Data",),
    "orchestrator.spec.job": ("JobSpec",),
    "orchestrator.spec.keys": ("FieldInfo", "children", "fields", "find_field"),
    "orchestrator.spec.model": ("Model",),
    "orchestrator.spec.parallelism": ("Ddp", "Parallelism"),
    "orchestrator.spec.presets": ("PRESETS", "ModelSizes"),
    "orchestrator.spec.resolve": ("Origin", "ResolvedJob", "resolve_job"),
    "orchestrator.spec.schema": ("json_schema",),
    "orchestrator.spec.timeouts": ("Timeouts",),
    "orchestrator.spec.train": ("Train",),
}


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
