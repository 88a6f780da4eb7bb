"""What is wrong or doubtful in a job's network: its fabric, its variables, and both together.

A variable of the user's holds against all that the tool would set; that is said, and no fault.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.errors import Fault, FaultsError, UserError
from orchestrator.fabric_pods import pods_problems
from orchestrator.fabric_warnings import pods_warnings
from orchestrator.network_plan import (
    backend_of,
    device_of,
    is_for,
    network_plan,
    node_variables,
    own_variables,
    preset_of,
)
from orchestrator.spec.base import KeyPath, Problem
from orchestrator.spec.kubernetes_target import KUBERNETES_TARGETS
from orchestrator.units import format_duration

if TYPE_CHECKING:
    from orchestrator.fabrics import Preset
    from orchestrator.network_plan import NetworkPlan
    from orchestrator.profiles import ClusterProfile
    from orchestrator.source import Document
    from orchestrator.spec import JobSpec, ResolvedJob

FABRIC: KeyPath = ("network", "fabric")
BACKEND: KeyPath = ("network", "backend")
ENV: tuple[KeyPath, ...] = (("network", "env"), ("env",))
# What network.debug and network.watch set: trainer/, by the names of data/variables.yaml.
DEBUG_VARIABLES = (
    "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
)  # fmt: skip
REPORTS = ("INFO", "TRACE")  # values of NCCL_DEBUG with which NCCL tells its transports
# In which phases a rank can wait for others in a collective, and for the first connections.
HCCL_PHASES = {
    "HCCL_EXEC_TIMEOUT": ("load", "first_step", "step", "evaluation", "checkpoint"),
    "HCCL_CONNECT_TIMEOUT": ("load", "first_step"),
}
GROUP_MARGIN_S = 60  # the process group's timeout is this above the phase's; trainer/limits.py


class Judged(NamedTuple):
    """What was found, each at the place that gave the value."""

    faults: tuple[Fault, ...]
    warnings: tuple[Fault, ...]


def check_network(job: ResolvedJob, profile: ClusterProfile) -> Judged:
    """Return what is wrong with the job's network on the cluster, and what is doubtful."""
    spec = job.spec
    names = list(_name_warnings(job, profile))
    try:
        preset = preset_of(spec, profile.target)
    except FaultsError as error:  # they have their places in the preset's own file
        return Judged(error.faults, tuple(names))
    except UserError as error:
        return Judged((job.fault(Problem(FABRIC, str(error))),), tuple(names))
    faults = [
        *_fabric_faults(spec, preset),
        *_timeout_faults(spec, preset),
        *_pods_faults(spec, preset, profile),
    ]
    warnings = [
        *_unused_warnings(spec, preset),
        *_preset_warnings(spec, preset, profile),
        *_own_warnings(spec, preset, profile),
        *_unused_key_warnings(spec, profile),
        *_pods_warnings(spec, preset, profile),
    ]
    return Judged(
        tuple(map(job.fault, faults)), (*names, *(job.fault(problem) for problem in warnings))
    )


def given_variables(spec: JobSpec) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield path, name and value of each variable of the user's."""
    for section, variables in zip(ENV, (spec.network.env, spec.env), strict=True):
        for name, value in variables.items():
            yield (*section, name), name, value


def _name_warnings(job: ResolvedJob, profile: ClusterProfile) -> Iterator[Fault]:
    """Names that are misspelt, old, or of no effect; also in what is for other clusters."""
    given = [(path, name) for path, name, _ in given_variables(job.spec)]
    others = list(_other_names(job.document, profile.name))
    if not given and not others:
        return
    from orchestrator.variables import remark  # late: most jobs set no variable

    for path, name in given:
        if (said := remark(name)) is not None:
            yield job.fault(Problem(path, said.message, said.fix, "key"))
    for path, name in others:
        if (said := remark(name)) is not None:
            yield job.document.fault(path, said.message, said.fix)


def _other_names(document: Document, chosen: str) -> Iterator[tuple[KeyPath, str]]:
    """Yield path and name of each variable that the job file sets for clusters not chosen."""
    for cluster, part in (document.data.get("clusters") or {}).items():
        for section in ENV if cluster != chosen else ():
            where: Any = part
            for key in section:
                where = (where or {}).get(key)
            yield from ((("clusters", cluster, *section, name), name) for name in where or {})


def _fabric_faults(spec: JobSpec, preset: Preset | None) -> Iterator[Problem]:
    """A backend that was written, with GPUs, for which the fabric is not."""
    backend = backend_of(spec, preset)
    written = spec.network.backend != "auto" and spec.resources.gpus_per_node
    if preset is not None and written and not is_for(preset, backend):
        yield Problem(
            BACKEND,
            f"{spec.network.backend}, and the fabric {preset.name} is for "
            f"{' or '.join(preset.backends)}",
            "remove backend, or write network.fabric: null",
            involves=(FABRIC,),
        )


def _pods_faults(
    spec: JobSpec, preset: Preset | None, profile: ClusterProfile
) -> Iterator[Problem]:
    if preset is None or profile.target not in KUBERNETES_TARGETS:
        return
    if is_for(preset, backend_of(spec, preset)):
        yield from pods_problems(spec.kubernetes, preset)


def _pods_warnings(
    spec: JobSpec, preset: Preset | None, profile: ClusterProfile
) -> Iterator[Problem]:
    if profile.target in KUBERNETES_TARGETS:
        backend = backend_of(spec, preset)
        used = preset if is_for(preset, backend) else None
        yield from pods_warnings(spec, used, device_of(spec, backend))


def _timeout_faults(spec: JobSpec, preset: Preset | None) -> Iterator[Problem]:
    """HCCL's own limits have to end a wait before torch does (Ascend CANN 8.5, environment variable
    reference)."""
    network = network_plan(spec, preset, None)
    if network.backend != "hccl":
        return
    for name, phases in HCCL_PHASES.items():
        path, value = _effective(spec, preset, name)
        limits = {phase: getattr(spec.limits, f"{phase}_s") for phase in phases}
        waits = {p: s + GROUP_MARGIN_S for p, s in limits.items() if s is not None}
        wait_s = _hccl_wait_s(name, value)
        short = [p for p, s in waits.items() if wait_s >= s]
        if short:
            said = [f"timeouts.{p} ({format_duration(limits[p])})" for p in short]
            is_endless = wait_s == math.inf
            longer = f"make timeouts.{' and timeouts.'.join(short)} longer, or "
            yield Problem(
                path,
                f"{name} is {value}{', which is no limit' if is_endless else ' s'}, and the ranks "
                f"give up after {' or '.join(said)} and {GROUP_MARGIN_S} s",
                f'{"" if is_endless else longer}write network.env: {{{name}: "..."}} with less '
                f"than {min(waits.values())}",
                involves=tuple(("timeouts", phase) for phase in short),
            )


def _hccl_wait_s(name: str, value: str) -> float:
    """Seconds that HCCL waits by a variable; -inf where the value says none. A 0 of
    HCCL_EXEC_TIMEOUT never ends on Atlas A2 and A3 (CANN, environment variable reference)."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", value):
        return -math.inf
    wait_s = float(value)
    return math.inf if name == "HCCL_EXEC_TIMEOUT" and wait_s == 0 else wait_s


def _effective(spec: JobSpec, preset: Preset | None, name: str) -> tuple[KeyPath, str]:
    """Return who gives a variable its value, and the value; "" for none."""
    for path, given, value in given_variables(spec):
        if given == name:
            return path, value
    own = preset.variables.get(name) if preset is not None else None
    return FABRIC, own.value if own is not None else ""


def _unused_warnings(spec: JobSpec, preset: Preset | None) -> Iterator[Problem]:
    backend = backend_of(spec, preset)
    if preset is None or is_for(preset, backend) or any(_fabric_faults(spec, preset)):
        return
    why = "" if spec.resources.gpus_per_node else ", since it asks for no GPUs"
    yield Problem(
        FABRIC,
        f"the fabric {preset.name} is for {' or '.join(preset.backends)}, and the job uses "
        f"{backend}{why}: nothing of it is used",
        "add resources.gpus_per_node, or write network.fabric: null"
        if why
        else "write network.fabric: null",
    )


def _preset_warnings(
    spec: JobSpec, preset: Preset | None, profile: ClusterProfile
) -> Iterator[Problem]:
    """Variables and keys of the user's that go against the fabric that is used."""
    if preset is None or not is_for(preset, backend_of(spec, preset)):
        return
    from orchestrator.fabrics import conflicts  # late: few jobs name a fabric

    given = {name: (path, value) for path, name, value in given_variables(spec)}
    own = own_variables(_network(spec, preset, profile))
    held = {name: value for name, (_, value) in own.items() if name not in given}
    for found in conflicts(preset, held):
        yield Problem(("network", own[found.name][0]), found.message, found.fix)
    for found in conflicts(preset, {name: value for name, (_, value) in given.items()}):
        yield Problem(given[found.name][0], found.message, found.fix)


def _network(spec: JobSpec, preset: Preset | None, profile: ClusterProfile) -> NetworkPlan:
    """The plan as far as keys of the user's make it."""
    is_local = profile.target == "local"
    interface = None if is_local else spec.network.interface
    return network_plan(spec, preset, interface, is_local=is_local)


def _own_warnings(
    spec: JobSpec, preset: Preset | None, profile: ClusterProfile
) -> Iterator[Problem]:
    """Variables of the user's in the place of what a key of `network` sets."""
    own = node_variables(_network(spec, preset, profile))
    watched = preset is not None and preset.promises and spec.network.watch != "off"
    names = {name for _, name, _ in given_variables(spec)}
    for path, name, value in given_variables(spec):
        if name in own and own[name][1] != value:
            key, ours = own[name]
            message = f"{name} is {ours!r} by network.{key}, and {value!r} here, which holds"
            yield Problem(path, message, f"remove it, or network.{key}")
        elif name in DEBUG_VARIABLES and spec.network.debug != "off":
            message = f"network.debug sets {name} too, and the value here holds"
            yield Problem(path, message, "remove it, or network.debug")
        elif name == "NCCL_DEBUG" and watched:
            yield from _report_warnings(path, value, has_file="NCCL_DEBUG_FILE" in names)


def _report_warnings(path: KeyPath, value: str, *, has_file: bool) -> Iterator[Problem]:
    """A value of NCCL_DEBUG with which the trainer finds no report of the transports."""
    nothing = "and network.watch compares nothing"
    if value.upper() not in REPORTS:
        message = f"with NCCL_DEBUG {value!r} NCCL does not tell its transports, {nothing}"
        yield Problem(path, message, "remove it, or write network.watch: off")
    elif not has_file:
        message = "NCCL_DEBUG without NCCL_DEBUG_FILE: what NCCL tells of its transports is in no "
        message += f"file, {nothing}"
        fix = "remove it, add NCCL_DEBUG_FILE, or write network.watch: off"
        yield Problem(path, message, fix)


def _unused_key_warnings(spec: JobSpec, profile: ClusterProfile) -> Iterator[Problem]:
    """Keys that mean nothing to the profile's target."""
    network = spec.network
    path: KeyPath = ("network", "host_suffix")
    fix = "write it below clusters.NAME, for the clusters that it is for"
    if profile.target == "local":
        message = (
            "the simulated nodes of this machine have addresses of 127.0.0.0/8: it is not used"
        )
        if network.interface not in (None, "lo"):
            yield Problem(("network", "interface"), message, fix)
        if network.address_family == "ipv6":
            yield Problem(("network", "address_family"), message, fix)
        if network.host_suffix is not None:
            yield Problem(path, message, fix)
    elif profile.is_kubernetes and network.host_suffix is not None:
        yield Problem(path, "pods meet by names of the cluster's own: it is not used", fix)
