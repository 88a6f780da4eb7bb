"""Presets of network fabrics: what a kind of network needs in the environment, and why.

One file a preset in data/fabrics; a site may have its own in the same form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from orchestrator import variables
from orchestrator.errors import Fault, FaultsError, UserError
from orchestrator.source import Document, parse_document, read_bytes
from orchestrator.spec.base import KeyPath, Part, Problem, Text, as_tuple, problems_error
from orchestrator.spec.environment import Environment
from orchestrator.spec.kubernetes_maps import ResourceCounts, VariableNames, VolumeNames
from orchestrator.spec.kubernetes_types import (
    AbsolutePath,
    DnsLabel,
    Mount,
    ResourceName,
    Words,
)
from orchestrator.spec.layers import fabric_beside
from orchestrator.spec.resolve import problems_of
from orchestrator.spec.suggest import did_you_mean

FOLDER = Path(__file__).parent / "data" / "fabrics"
MAX_EXTENDS = 5  # presets in a row, each of which extends the next

Texts = Annotated[tuple[Text, ...], BeforeValidator(as_tuple)]
# capabilities(7), without CAP_ as Kubernetes has them.
Capability = Annotated[str, Field(pattern=r"^[A-Z][A-Z_]*$")]
Capabilities = Annotated[tuple[Capability, ...], BeforeValidator(as_tuple)]


class Setting(Part):
    """One variable of a preset."""

    value: str = Field(description="What it is set to.")
    why: Text = Field(description="What it is good for.")
    source: Text = Field(description="Who says so.")
    since: dict[str, str] = Field(
        default_factory=dict, description="Least release of a library that it holds for."
    )
    of_node: bool = Field(
        default=False,
        description="It names what only the node's network has: pods without that do not get it.",
    )
    node_file: bool = Field(
        default=False,
        description="It names a file of the node: pods in which no volume has it do not get it.",
    )

    def over(self, other: Setting | None) -> Setting:
        """Return this one with what another preset says of the same variable's place."""
        written = other.model_fields_set - self.model_fields_set if other is not None else set()
        places = {"of_node", "node_file"} & written
        return self.model_copy(update={str(name): getattr(other, name) for name in places})


class Script(Part):
    """A vendor's script that is sourced in place of a copy of its list."""

    path: Text = Field(description="Where it is on each node.")
    why: Text = Field(description="Why it is sourced.")
    source: Text = Field(description="Who says so.")


class Sidecar(Part):
    """A container that the fabric needs beside the trainer on Kubernetes; the site gives its
    image. It starts before the trainer and ends after it."""

    name: DnsLabel = Field(description="Name of the container.")
    capabilities: Capabilities = Field(default=(), description="Linux capabilities that it needs.")
    command: Words = Field(default=(), description="What it runs; the image's own without it.")
    args: Words = Field(default=(), description="Arguments; the site's take their place.")
    env: Environment = Field(default_factory=dict, description="Its environment variables.")
    mounts: dict[str, Mount] = Field(
        default_factory=dict, description="Where it has which of the fabric's volumes."
    )
    ready_file: AbsolutePath | None = Field(
        default=None, description="A file of its own that is there once the trainer may start."
    )


class Folder(Part):
    """A folder of the node that containers have."""

    path: AbsolutePath = Field(description="Where it is on the node.")
    make: bool = Field(default=False, description="Whether it is made where there is none.")


class Pods(Part):
    """What the fabric needs of pods on Kubernetes."""

    rdma: bool = Field(default=False, description="Pods register memory: IPC_LOCK.")
    host_network: bool = Field(default=False, description="Pods use the node's network.")
    gpu_resource: ResourceName | None = Field(
        default=None, description="Resource by which a pod asks for GPUs of the fabric's vendor."
    )
    extra_resources: ResourceCounts = Field(
        default_factory=dict, description="Extended resources of each pod."
    )
    by_site: Text | None = Field(
        default=None,
        description="Why pods need more than this: said where the site gives no devices and not "
        "the node's network.",
    )
    volumes: Annotated[dict[str, Folder], VolumeNames] = Field(
        default_factory=dict, description="Folders of the node by the name of a volume."
    )
    mounts: dict[str, Mount] = Field(
        default_factory=dict, description="Where the trainer has which of these volumes."
    )
    sidecars: Annotated[tuple[Sidecar, ...], BeforeValidator(as_tuple)] = Field(
        default=(), description="Containers beside the trainer."
    )

    @model_validator(mode="after")
    def _whole(self) -> Pods:
        found = list(_mount_problems(self))
        if found:
            raise problems_error(found)
        return self


def _mount_problems(pods: Pods) -> Iterator[Problem]:
    """Mounts of what is no volume of the fabric's."""
    places: list[tuple[KeyPath, dict[str, str]]] = [(("mounts",), pods.mounts)]
    places += [(("sidecars", n, "mounts"), s.mounts) for n, s in enumerate(pods.sidecars)]
    for path, mounts in places:
        for name in mounts:
            if name not in pods.volumes:
                fix = f"write one of volumes: {', '.join(pods.volumes) or 'there is none'}"
                yield Problem((*path, name), f"{name} is no volume of the fabric's", fix, "key")


class Preset(Part):
    """A kind of network between nodes."""

    version: Literal[1] = Field(description="Of this form.")
    name: Text = Field(description="As network.fabric names it.")
    summary: Text = Field(description="One line for people.")
    backends: Texts = Field(description="Communication backends that it is for.")
    reviewed: Text = Field(description="When it was last compared with its sources.")
    tried: bool = Field(description="Whether this project has run it on the real hardware.")
    extends: str | None = Field(
        default=None,
        description="A preset whose content it takes over; a path is relative to this file.",
    )
    link: Text | None = Field(
        default=None, description="Link of data/links.yaml that a node has, for the planner."
    )
    promises: Texts = Field(
        default=(), description="Transports of which the library must report one between nodes."
    )
    variables: Annotated[dict[str, Setting], VariableNames] = Field(
        default_factory=dict, description="What is set."
    )
    leave: dict[str, Text] = Field(
        default_factory=dict, description="What is better left alone, and why."
    )
    script: Script | None = Field(default=None, description="A vendor's script to be sourced.")
    library_path: Texts = Field(default=(), description="Folders in front of LD_LIBRARY_PATH.")
    kubernetes: Pods | None = Field(default=None, description="What pods need.")
    notes: Texts = Field(default=(), description="What a site should know.")


class Conflict(NamedTuple):
    """A variable of the user's that goes against a preset."""

    name: str
    message: str
    fix: str


def names() -> list[str]:
    """Return the names of the presets that ship with the tool."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def preset(name: str) -> Preset:
    """Return a preset with what it extends.

    Args:
        name: of one that ships with the tool, or the path (with a /) of a site's own file.

    Raises:
        UserError: there is none.
        FaultsError: its file is faulty.
    """
    found, where = _read(name), name
    chain = [found]
    while found.extends is not None:
        if len(chain) == MAX_EXTENDS:
            raise UserError(f"fabric {name}: more than {MAX_EXTENDS} presets extend one another")
        where = fabric_beside(found.extends, where)
        found = _read(where)
        chain.append(found)
    return _merged(chain)


def _read(name: str) -> Preset:
    path = Path(name) if "/" in name else FOLDER / f"{name}.yaml"
    if "/" not in name and name not in names():
        close = did_you_mean(name, names())
        hint = f"did you mean {close[0]}? " if close else ""
        raise UserError(f"fabric {name}: no such preset; {hint}there are {', '.join(names())}")
    document = parse_document(read_bytes(path), str(path) if "/" in name else path.name)
    try:
        return Preset.model_validate(document.data)
    except ValidationError as error:
        raise FaultsError([*document.faults, *_faults(document, error)]) from None


def _faults(document: Document, error: ValidationError) -> Iterator[Fault]:
    for one in error.errors(include_url=False):
        for problem in problems_of(one):
            yield document.fault(problem.path, problem.message, problem.fix, at=problem.at)


def _merged(chain: list[Preset]) -> Preset:
    """Return the first with what it does not say itself taken from the others."""
    first, *others = chain
    data: dict[str, Any] = {name: getattr(first, name) for name in Preset.model_fields}
    for other in others:
        own = {name: s.over(other.variables.get(name)) for name, s in data["variables"].items()}
        data["variables"] = {**other.variables, **own}
        data["leave"] = {**other.leave, **data["leave"]}
        for name in ("promises", "script", "library_path", "kubernetes"):
            data[name] = data[name] or getattr(other, name)
        data["notes"] = (*data["notes"], *other.notes)
    data["leave"] = {n: why for n, why in data["leave"].items() if n not in data["variables"]}
    return Preset.model_construct(**data)


def conflicts(preset: Preset, given: Mapping[str, str]) -> list[Conflict]:
    """Return which of the user's variables go against a preset; the user's hold all the same."""
    found = []
    for name, value in given.items():
        own = preset.variables.get(name)
        if own is not None and own.value != value:
            message = f"{name} is {own.value!r} in the fabric {preset.name} ({own.why}), and "
            message += f"{value!r} here, which holds"
            found.append(Conflict(name, message, f"remove it, unless {value!r} is meant"))
        elif own is None and name in preset.leave:
            message = f"the fabric {preset.name} leaves {name} alone: {preset.leave[name]}"
            found.append(Conflict(name, message, "remove it, unless it is meant"))
    return found


def lint(preset: Preset) -> list[str]:
    """Return what is wrong with a preset: names that no library has, or has no more."""
    remarks = ((name, variables.remark(name)) for name in preset.variables)
    return [f"{name}: {said.message}; {said.fix}" for name, said in remarks if said is not None]
