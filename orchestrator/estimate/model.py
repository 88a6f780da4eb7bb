"""The outline of a job's model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UserError
from orchestrator.estimate.gpt import gpt_outline
from orchestrator.spec.train import BYTE_TOKENS

if TYPE_CHECKING:
    from orchestrator.estimate.outline import Outline
    from orchestrator.spec import JobSpec


def outline_of(spec: JobSpec, folder: Path) -> Outline:
    """Return the outline of the job's model."""
    model = spec.train.model
    if model.sizes is None:
        raise UserError(f"{folder}: train.model is a factory")
    return gpt_outline(model.sizes, model.vocab_size or BYTE_TOKENS, model.tied, model.dropout)
