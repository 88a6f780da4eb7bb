"""`orchestrate fabric`: the presets of network fabrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.common import json_option, print_json, say
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.fabrics import Pods, Preset, Setting


@click.group(name="fabric")
def command() -> None:
    """Presets of network fabrics, chosen by network.fabric: what each sets, and why.

    \b
    Examples:
      orchestrate fabric list
      orchestrate fabric show infiniband
      orchestrate fabric lint ./our-fabric.yaml
    """


@command.command(name="list")
@json_option
def list_presets(as_json: bool) -> None:
    """List the presets that ship with the tool."""
    from orchestrator.cli.table import aligned
    from orchestrator.fabrics import names, preset

    found = [preset(name) for name in names()]
    if as_json:
        print_json([{"name": p.name, "summary": p.summary, "tried": p.tried} for p in found])
        return
    rows = [(p.name, ",".join(p.backends), "yes" if p.tried else "no", p.summary) for p in found]
    say(aligned([("FABRIC", "BACKEND", "TRIED", "FOR"), *rows]))


@command.command(name="show")
@click.argument("name", metavar="FABRIC")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show what FABRIC sets, with the reason and source of each variable.

    FABRIC is the name of a preset, or the path of a file with a / in it.
    """
    from orchestrator.fabrics import preset

    found = preset(name)
    if as_json:
        print_json(found.model_dump())
        return
    say("\n".join(_described(found)))


def _described(found: Preset) -> list[str]:
    tried = "tried" if found.tried else "not tried"
    lines = [
        f"{found.name}: {found.summary}",
        f"reviewed {found.reviewed}; {tried} on the real hardware by this project",
    ]
    for name, setting in found.variables.items():
        lines += [f"  {name}={setting.value}", f"      {setting.why}{_since(setting)}"]
        lines.append(f"      source: {setting.source}")
        if setting.of_node:
            lines.append("      not in pods without the node's network (kubernetes.host_network)")
        if setting.node_file:
            lines.append("      not in pods without a volume that has the file")
    if found.script is not None:
        lines += [f"  source {found.script.path}", f"      {found.script.why}"]
    lines += [f"  {path} in front of LD_LIBRARY_PATH" for path in found.library_path]
    lines += [f"  leave {name}: {why}" for name, why in found.leave.items()]
    lines += [f"  pods: {need}" for need in _pods(found.kubernetes)]
    if found.promises:
        lines.append(f"  between nodes its library must report one of: {', '.join(found.promises)}")
    return [*lines, *(f"  note: {note}" for note in found.notes)]


def _pods(pods: Pods | None) -> list[str]:
    """What the fabric needs of pods on Kubernetes, in words."""
    if pods is None:
        return []
    lines = ["IPC_LOCK (kubernetes.rdma)"] if pods.rdma else []
    lines += ["the node's network (kubernetes.host_network)"] if pods.host_network else []
    lines += [f"GPUs as {pods.gpu_resource} (gpu_resource)"] if pods.gpu_resource else []
    lines += [f"{name}: {count} (extra_resources)" for name, count in pods.extra_resources.items()]
    for name, folder in pods.volumes.items():
        where = f" at {pods.mounts[name]}" if name in pods.mounts else ""
        lines.append(f"{folder.path} of the node{where}")
    for sidecar in pods.sidecars:
        rights = f" with {', '.join(sidecar.capabilities)}" if sidecar.capabilities else ""
        lines.append(f"container {sidecar.name}{rights} (kubernetes.sidecars)")
    return [*lines, pods.by_site] if pods.by_site else lines


def _since(setting: Setting) -> str:
    known = ", ".join(f"{library} {version}" for library, version in setting.since.items())
    return f" (since {known})" if known else ""


@command.command(name="lint")
@click.argument("given", nargs=-1, metavar="[FABRIC|NAME=VALUE]...")
@json_option
def lint_command(given: tuple[str, ...], as_json: bool) -> None:
    """Check presets, or single variables, against the lists of the libraries' names.

    Without an argument all presets are checked. Exit code 1 where something is found.

    \b
    Examples:
      orchestrate fabric lint
      orchestrate fabric lint ./our-fabric.yaml
      orchestrate fabric lint NCCL_IB_GDR_LEVEL=3 NCCL_SOCKET_IFNAM=eth0
    """
    from orchestrator.fabrics import names

    found: dict[str, Any] = {name: _remarks(name) for name in given or names()}
    if as_json:
        print_json(found)
    else:
        rows = [(name, text) for name, texts in found.items() for text in texts or ["good"]]
        say("\n".join(f"{name}: {text}" for name, text in rows))
    if any(found.values()):
        raise click.exceptions.Exit(1)


def _remarks(given: str) -> list[str]:
    from orchestrator.fabrics import lint, preset
    from orchestrator.variables import remark

    name, equals, _ = given.partition("=")
    if not equals:
        return lint(preset(given))
    if not name:
        raise UserError(f"{given}: no name before the =; write NAME=VALUE")
    said = remark(name)
    return [f"{said.message}; {said.fix}"] if said is not None else []
