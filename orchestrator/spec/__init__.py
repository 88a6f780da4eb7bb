"""The job file: what may be in it, what is wrong with it, and what holds in the end."""

from orchestrator.source import expand, unexpanded
from orchestrator.spec.cluster import Attempts, Network, Resources, Timeouts
from orchestrator.spec.fields import FieldInfo, children, fields, find_field
from orchestrator.spec.job import Checkpoint, JobSpec
from orchestrator.spec.model import Model
from orchestrator.spec.parallelism import Ddp, Parallelism
from orchestrator.spec.presets import PRESETS, ModelSizes
from orchestrator.spec.resolve import Origin, ResolvedJob, resolve_job
from orchestrator.spec.schema import json_schema
from orchestrator.spec.train import Data, Train

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
