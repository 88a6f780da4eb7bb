"""What a platform team allows: a file of limits that every job keeps to.

`policy: FILE` of the cluster profile, $ORCHESTRATE_POLICY and `--policy FILE` name one each; all of
them hold, so that none takes the place of another.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError

from orchestrator.errors import FaultsError, Position, UserError
from orchestrator.profiles import Target, part_faults
from orchestrator.source import Document, parse_document, read_bytes
from orchestrator.spec.base import (
    Duration,
    Part,
    Problem,
    Text,
    TypeWords,
    as_tuple,
    problems_error,
)

Globs = Annotated[tuple[Text, ...], BeforeValidator(as_tuple), TypeWords("list of names or globs")]


def _as_globs(value: object) -> object:
    """A list of names stands for a map of each to any value."""
    if not isinstance(value, list):
        return value
    others = [index for index, name in enumerate(value) if not isinstance(name, str)]
    if others:
        message = "the name of a label is a text"
        raise problems_error(Problem((index,), message, "put it in quotes") for index in others)
    return dict.fromkeys(value, "*")


class Policy(Part):
    """Limits of a platform team; one that is not given allows everything.

    Globs are those of Python's fnmatch: * also matches a slash.
    """

    version: Literal[1] = Field(description="Version of this form: 1.")
    max_nodes: int | None = Field(default=None, ge=1, description="Most nodes of a run.")
    max_gpus: int | None = Field(
        default=None, ge=0, description="Most GPUs of a run, over all of its nodes."
    )
    allowed_images: Globs | None = Field(
        default=None, description="Images that a run may have, where it has one."
    )
    required_labels: Annotated[
        dict[str, str],
        BeforeValidator(_as_globs),
        TypeWords("list of names, or map of names to globs"),
    ] = Field(
        default_factory=dict,
        description="Labels that kubernetes.labels must have: names, or names and globs of values.",
    )
    allowed_queues: Globs | None = Field(
        default=None,
        description="Queues that a run may be in, and it must be in one: Kueue's or Volcano's, on "
        "Slurm the partition.",
    )
    allowed_targets: Annotated[tuple[Target, ...], BeforeValidator(as_tuple)] | None = Field(
        default=None, description="Targets that a run may have."
    )
    allowed_namespaces: Globs | None = Field(
        default=None,
        description="Namespaces that a run on Kubernetes may be in; it must name one.",
    )
    require_time_limit: bool = Field(
        default=False, description="Whether resources.time_limit must be given."
    )
    max_time_limit: Duration | None = Field(
        default=None, description="Longest resources.time_limit, which must then be given."
    )


def read_policy(path: Path, name: str) -> tuple[Policy, Document]:
    """Return the policy of a file and where its parts stand.

    Args:
        path: the file.
        name: what to call it in messages.

    Raises:
        UserError: it cannot be read.
        FaultsError: everything that is wrong in it.
    """
    try:
        document = parse_document(read_bytes(path), name)
    except UserError as error:
        if isinstance(error, FaultsError):
            raise
        raise UserError(f"policy {error}") from None
    faults = list(document.faults)
    try:
        policy = Policy.model_validate(document.data)
    except ValidationError as error:
        for one in error.errors(include_url=False):
            faults += part_faults(document, (), one, Policy, "version: 1")
    if faults:
        raise FaultsError(sorted(faults, key=lambda fault: fault.position or Position(0, 0)))
    return policy, document
