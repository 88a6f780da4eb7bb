"""`orchestrate explain`: what a key means, and where its value comes from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.common import (
    cluster_options,
    faults_as_json,
    json_option,
    load_job,
    print_json,
    say,
    say_cluster,
    set_option,
)

if TYPE_CHECKING:
    from orchestrator.cli.common import Loaded
    from orchestrator.spec import FieldInfo, ResolvedJob


@click.command(name="explain")
@click.argument("field", required=False, metavar="[KEY]")
@click.argument("job", type=click.Path(path_type=Path), required=False, metavar="[JOB.YAML]")
@cluster_options
@set_option
@json_option
def command(
    field: str | None,
    job: Path | None,
    cluster: str | None,
    clusters_file: str | None,
    sets: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say what KEY means: its type, unit, default, and what it becomes on each target.

    With a job file also its value there, and which of --set, job file, profile and default gave it.
    Without KEY, list all keys.

    \b
    Examples:
      orchestrate explain
      orchestrate explain timeouts.step
      orchestrate explain resources.nodes job.yaml --set resources.nodes=4
    """
    from orchestrator.spec import fields, find_field

    if field is None:
        _print_all([_words(info) for info in fields()], as_json)
        return
    with faults_as_json(as_json):
        info = find_field(field)
        words = _words(info)
        if job is not None and not info.section:
            loaded = load_job(job, cluster, clusters_file, sets)
            words |= _value(loaded.resolved, field)
            if loaded.resolved.chosen and field.startswith("parallelism"):
                words["chosen"] = list(loaded.resolved.chosen)
            if (info.path, words["value"]) == ("checkpoint.every", "auto"):
                words |= _failures(loaded)
            say(f"# {say_cluster(loaded.profile, loaded.source)}", err=True)
    if as_json:
        print_json(words)
    else:
        _print(words)


def _words(info: FieldInfo) -> dict[str, Any]:
    from orchestrator.spec import children

    return {
        "key": info.path,
        "type": info.type,
        "default": info.default,
        "supported": info.supported,
        "meaning": info.description,
        "keys": children(info.path),
    }


def _print_all(keys: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(keys)
        return
    width = max(len(words["key"]) for words in keys)
    for words in keys:
        later = "" if words["supported"] else ", not supported yet"
        say(f"{words['key']:<{width}}  {words['type']}{later}")


def _value(resolved: ResolvedJob, key: str) -> dict[str, Any]:
    """What holds in the job, as plain data (seconds and bytes), and where it comes from."""
    value: Any = resolved.spec.model_dump(mode="json", by_alias=True)
    keys = tuple(key.split("."))
    for part in keys:
        value = value.get(part) if isinstance(value, dict) else None
    # A range of nodes is a map, whose parts may come from several places.
    labels = [o.label for path, o in resolved.origins.items() if path[: len(keys)] == keys]
    return {"value": value, "from": ", ".join(dict.fromkeys(labels)) or "default"}


def _failures(loaded: Loaded) -> dict[str, Any]:
    """What `checkpoint.every: auto` rests on: how often the cluster's nodes fail, in seconds."""
    profile, num_nodes = loaded.profile, loaded.resolved.spec.resources.max_nodes
    return {
        "mean_time_between_failures": {
            "node_s": profile.mean_time_between_failures,
            "job_s": profile.mtbf_s(num_nodes),
            "from": profile.origin("mean_time_between_failures"),
        }
    }


def _print(words: dict[str, Any]) -> None:
    from orchestrator.units import format_duration

    say(f"{words['key']}: {words['type']}")
    say(f"  {words['meaning']}")
    if not words["supported"]:
        say("  not supported yet")
    say(f"  default: {words['default']}")
    if words["keys"]:
        say(f"  keys: {', '.join(words['keys'])}")
    if "value" in words:
        say(f"  value: {words['value']} (from {words['from']})")
    if failures := words.get("mean_time_between_failures"):
        node, job = (format_duration(int(failures[key])) for key in ("node_s", "job_s"))
        say(
            f"  a node fails every {node} on average (from {failures['from']}), the job every {job}"
        )
