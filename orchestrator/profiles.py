"""Cluster profiles: a site's facts, where they are found, and which file in the way is trusted.

The first of these wins as a whole: `--clusters FILE`, $ORCHESTRATE_CLUSTERS, a trusted
`clusters.yaml` in the working folder, `orchestrate/clusters.yaml` in the user's configuration
folder, the embedded profiles. Embedded profiles stay available under names that it does not use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from orchestrator.errors import Fault, FaultsError, UserError
from orchestrator.source import Document, parse_document, read_bytes
from orchestrator.spec.base import Duration, KeyPath, Part, Problem, Text, duration
from orchestrator.spec.hardware import HardwareFacts
from orchestrator.spec.kubernetes_target import KUBERNETES_TARGETS, profile_problems
from orchestrator.spec.layers import profile_layers
from orchestrator.spec.resolve import layer_problems, problems_of
from orchestrator.spec.suggest import did_you_mean
from orchestrator.trust import config_folder, trust_state

CLUSTERS_FILE = "clusters.yaml"
CLUSTERS_VARIABLE = "ORCHESTRATE_CLUSTERS"
EMBEDDED = "embedded profiles"

# A host's alias or user@host; never an option of ssh.
SSH_PATTERN = r"^[A-Za-z0-9_:][A-Za-z0-9_.:%@-]*$"
Target = Literal["local", "slurm", "pytorchjob", "trainjob", "jobset", "job"]


class _AsItIs:
    """Marks a field that holds a Document, which pydantic is not to look into."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        return core_schema.nullable_schema(core_schema.is_instance_schema(Document))


class ClusterProfile(Part):
    """What is known of a cluster: frozen, checked."""

    name: Text = Field(description="Name by which --cluster and a job file's clusters choose it.")
    target: Target = Field(description="What starts the job there.")
    runs_root: Text = Field(
        default="./runs",
        description="Folder of all run folders; a relative one is relative to the working folder.",
    )
    ssh: Annotated[str, Field(pattern=SSH_PATTERN)] | None = Field(
        default=None,
        description="Login node, as the user's ssh knows it, from which the cluster is used.",
    )
    workdir: Text | None = Field(
        default=None,
        description="Folder there that relative paths of the job file are relative to; by default "
        "the job file's own folder, and with ssh the home folder. Kubernetes: kubernetes.workdir.",
    )
    policy: Text | None = Field(
        default=None,
        description="File with what the platform team allows there, relative to this file.",
    )
    description: str = Field(default="", description="One line for people.")
    # 6.5 failures in 1000 node-days on RSC-1, 16,000 GPUs: Kokolis et al., "Revisiting Reliability
    # in Large-Scale Machine Learning Research Clusters" (2024).
    mean_time_between_failures: Duration = duration(
        "154d",
        "Mean time between failures of one node, for `checkpoint.every: auto`.",
    )
    fabric: Text | None = Field(
        default=None,
        description="Preset of the network between its nodes: network.fabric of its jobs.",
    )
    hardware: HardwareFacts | None = Field(
        default=None,
        description="Cards and links, for the planner; by default what resources.gpu_type says.",
    )
    defaults: dict[str, Any] = Field(
        default_factory=dict,
        description="A partial job; the job file wins over it.",
    )
    slurm: dict[str, Any] = Field(
        default_factory=dict,
        description="What a Slurm site needs: the keys of slurm in the job file's reference.",
    )
    kubernetes: dict[str, Any] = Field(
        default_factory=dict,
        description="What a Kubernetes cluster needs: the keys of kubernetes in the job file's "
        "reference.",
    )
    document: Annotated[Document | None, _AsItIs] = Field(default=None, exclude=True, repr=False)

    @property
    def is_kubernetes(self) -> bool:
        """Whether an API server starts the job, and its folders lie in the pods."""
        return self.target in KUBERNETES_TARGETS

    def mtbf_s(self, num_nodes: int) -> float:
        """Mean time in seconds between failures of any of `num_nodes` nodes."""
        return self.mean_time_between_failures / num_nodes

    def origin(self, key: str) -> str:
        """Where a key of the profile comes from, as `explain` says it."""
        if key not in self.model_fields_set:
            return "default"
        place = self.document and self.document.position(("clusters", self.name, key))
        where = f"{self.file}:{place.line}:{place.column}" if place else self.file
        return f"profile {self.name} ({where})"

    @property
    def file(self) -> str:
        """The file that it was read from, for messages."""
        return self.document.file if self.document is not None else "made in code"


class ProfileSource(NamedTuple):
    """The profiles that hold here.

    Args:
        label: which file won, for the line that every command prints.
        profiles: by name; embedded ones included unless the file has that name itself.
        own: names that the winning file defines.
        default: the profile that holds without --cluster, if the file names one.
        warnings: what the user should know, such as a file that was passed over.
    """

    label: str
    profiles: Mapping[str, ClusterProfile]
    own: tuple[str, ...]
    default: str | None = None
    warnings: tuple[str, ...] = ()

    def choose(self, name: str | None = None) -> ClusterProfile:
        """Return a profile by name, or the default: the one named so, or the file's only one.

        Raises:
            UserError: no such profile, or no default.
        """
        if name is None:
            name = self.default or (self.own[0] if len(self.own) == 1 else None)
        if name is None:
            raise UserError(
                f"{self.label}: no default profile; choose one with --cluster: "
                f"{', '.join(self.own) or 'none there'}; or add `default: NAME` to the file"
            )
        if name not in self.profiles:
            close = did_you_mean(name, list(self.profiles))
            hint = f'did you mean "{close[0]}"? ' if close else ""
            raise UserError(
                f'{self.label}: no profile "{name}"; {hint}there are {", ".join(self.profiles)}'
            )
        return self.profiles[name]


def find_profiles(
    clusters_file: str | None, environ: Mapping[str, str], cwd: str | Path
) -> ProfileSource:
    """Return the profiles that hold, see the module's text for the order.

    Args:
        clusters_file: what --clusters named, or None.
        environ: ORCHESTRATE_CLUSTERS, XDG_CONFIG_HOME and HOME are read.
        cwd: the working folder.

    Raises:
        UserError: a named file cannot be read.
        FaultsError: the file that wins is faulty.
    """
    named = clusters_file or environ.get(CLUSTERS_VARIABLE)
    if named:
        origin = "--clusters" if clusters_file else f"${CLUSTERS_VARIABLE}"
        raw = read_bytes(Path(cwd) / named)
        return _source(f"{named} ({origin})", parse_document(raw, named), ())
    here = Path(cwd) / CLUSTERS_FILE
    warnings: tuple[str, ...] = ()
    if here.is_file():
        raw = read_bytes(here)
        state = trust_state(here, raw, environ)
        if state == "trusted":
            label = f"{CLUSTERS_FILE} (working folder, trusted)"
            return _source(label, parse_document(raw, CLUSTERS_FILE), ())
        warnings = (_passed_over(here, state),)
    folder = config_folder(environ)
    own = folder / CLUSTERS_FILE if folder is not None else None
    if own is not None and own.is_file():
        return _source(f"{own} (user)", parse_document(read_bytes(own), str(own)), warnings)
    return _source(EMBEDDED, _embedded(), warnings)


def embedded_profiles() -> ProfileSource:
    """Return the neutral profiles that ship with the tool, one for each target."""
    return _source(EMBEDDED, _embedded(), ())


def _passed_over(here: Path, state: str) -> str:
    reason = "changed since it was trusted" if state == "changed" else "not trusted"
    return (
        f"{here} is not used: {reason}, and a profile can carry hosts and commands. "
        f"Read it, then name it with --clusters {CLUSTERS_FILE}, or trust it"
    )


def _embedded() -> Document:
    return parse_document(read_bytes(Path(__file__).parent / "data" / "profiles.yaml"), EMBEDDED)


def _source(label: str, document: Document, warnings: tuple[str, ...]) -> ProfileSource:
    profiles, default = _profiles(document)
    embedded = {} if label == EMBEDDED else _profiles(_embedded())[0]
    return ProfileSource(label, {**embedded, **profiles}, tuple(profiles), default, warnings)


def _profiles(document: Document) -> tuple[dict[str, ClusterProfile], str | None]:
    """Return the profiles of a file by name, and the name of the default."""
    faults = [*document.faults, *_root_faults(document)]
    entries = document.data.get("clusters")
    profiles: dict[str, ClusterProfile] = {}
    for name, entry in (entries if isinstance(entries, dict) else {}).items():
        found = _profile(document, name, entry)
        if isinstance(found, ClusterProfile):
            profiles[name] = found
        else:
            faults += found
    default = document.data.get("default")
    known = list(entries) if isinstance(entries, dict) else []
    if default is not None and default not in known:
        from orchestrator.spec.words import shown  # late: profiles without faults need no words

        message = f"there is no profile {shown(default)} in this file"
        faults.append(document.fault(("default",), message, "name one of clusters", at="value"))
    if faults:
        raise FaultsError(faults)
    return profiles, default


def _root_faults(document: Document) -> Iterator[Fault]:
    for name in document.data:
        if name not in ("clusters", "default"):
            close = did_you_mean(name, ["clusters", "default"])
            fix = f'did you mean "{close[0]}"?' if close else "the keys here are clusters, default"
            yield document.fault((name,), "unknown key", fix)
    if not isinstance(document.data.get("clusters"), dict):
        yield document.fault(
            ("clusters",),
            "a map of profiles is required",
            "write `clusters:` and below it `NAME: {target: slurm}`",
        )


def _profile(document: Document, name: str, entry: object) -> ClusterProfile | list[Fault]:
    path: KeyPath = ("clusters", name)
    if not isinstance(entry, dict):
        return [document.fault(path, "a map belongs here", "write {target: slurm}", at="value")]
    faults = [_reserved(document, path, key) for key in ("name", "document") if key in entry]
    if faults:
        return faults
    try:
        profile = ClusterProfile.model_validate({**entry, "name": name, "document": document})
    except ValidationError as error:
        found = error.errors(include_url=False)
        return [
            fault
            for one in found
            for fault in part_faults(document, path, one, ClusterProfile, "target: slurm")
        ]
    layers = profile_layers(profile)
    faults = [layer.fault(p) for layer in layers for p in layer_problems(layer.data)]
    if profile.target in KUBERNETES_TARGETS:
        faults += [_fault(document, path, problem) for problem in profile_problems(profile)]
    return faults or profile


def _fault(document: Document, path: KeyPath, problem: Problem) -> Fault:
    return document.fault((*path, *problem.path), problem.message, problem.fix, at=problem.at)


def _reserved(document: Document, path: KeyPath, key: str) -> Fault:
    return document.fault((*path, key), "unknown key", "the name is the key above; remove this")


def _keys(part: type[Part], path: tuple[int | str, ...]) -> list[str]:
    """Return the keys of a part, or of one below it."""
    for name in path:
        field = part.model_fields.get(str(name))
        inner = get_args(field.annotation) if field is not None else ()
        below = [one for one in inner if isinstance(one, type) and issubclass(one, Part)]
        part = below[0] if below else part
    return [key for key in part.model_fields if key not in ("name", "document")]


def part_faults(
    document: Document, path: KeyPath, error: ErrorDetails, part: type[Part], example: str
) -> list[Fault]:
    """Return one of pydantic's errors in a part of a file beside the job file as located faults.

    Args:
        path: of the part in the document.
        part: what was to be read there; its own keys `name` and `document` are not the file's.
        example: line for the key that is required.
    """
    where: KeyPath = (*path, *error["loc"])
    if error["type"] == "extra_forbidden":
        keys = _keys(part, error["loc"][:-1])
        close = did_you_mean(str(where[-1]), keys)
        fix = f'did you mean "{close[0]}"?' if close else f"the keys here are {', '.join(keys)}"
        return [document.fault(where, "unknown key", fix)]
    if error["type"] == "missing":
        return [document.fault(where, "required, and not given", f"add `{example}`")]
    return [_fault(document, path, problem) for problem in problems_of(error)]
