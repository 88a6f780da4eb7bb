"""From a plan to files, byte for byte the same for the same plan and tool version.

No time, random number, user name or path of a machine gets into a rendered file. Only this module
and orchestrator.report import jinja2.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from orchestrator.directives import directives
from orchestrator.manifests import manifest_values
from orchestrator.node_network import network_arguments
from orchestrator.plan import LaunchPlan
from orchestrator.queues import needs_pod_group
from orchestrator.submitit_settings import submitit_settings
from orchestrator.template_folder import template_folder

# Both packages are installed side by side.
NODE_PY = Path(__file__).resolve().parents[1] / "trainer" / "node.py"


class Rendered(NamedTuple):
    """The files of one run, by name, sorted."""

    name: str
    target: str
    files: dict[str, str]


def render(plan: LaunchPlan) -> Rendered:
    """Return the files that start `plan` on its target.

    Raises:
        UserError: what the pods are to read does not fit into a ConfigMap.
    """
    rendered = _RENDERERS[plan.target](plan)
    return Rendered(plan.name, plan.target, dict(sorted(rendered.items())))


def _render_local(plan: LaunchPlan) -> dict[str, str]:
    return {
        "launch.json": _launch(plan),
        "node.sh": _template("local/node.sh.j2", plan),
        **_trainers(plan),
    }


def _render_slurm(plan: LaunchPlan) -> dict[str, str]:
    if plan.launcher == "submitit":
        return _render_submitit(plan)
    return {
        "job.sh": _template("slurm/job.sh.j2", plan, directives=directives(plan)),
        "launch.json": _launch(plan),
        **_trainers(plan),
    }


def _render_kubernetes(plan: LaunchPlan) -> dict[str, str]:
    """The manifests, which carry the hash of themselves (as they are without one)."""
    files = _manifests(plan, "")
    content = hashlib.sha256(_json(files).encode())
    return _manifests(plan, content.hexdigest()[:16])


def _manifests(plan: LaunchPlan, content_hash: str) -> dict[str, str]:
    config = {"trainer.json": _json(plan.trainer), "launch.json": _launch(plan)}
    if plan.kubernetes.launcher_from == "config-map":
        config["node.py"] = NODE_PY.read_text(encoding="utf-8")
    values = manifest_values(plan, config, content_hash)
    names = [*_OBJECTS[plan.target], *(["podgroup"] if needs_pod_group(plan) else [])]
    objects = {f"{name}.yaml": _template(f"k8s/{name}.yaml.j2", plan, **values) for name in names}
    return {**config, **objects}


def _trainers(plan: LaunchPlan) -> dict[str, str]:
    """What the trainer reads: one file, or one for each element of a sweep and a list of them."""
    if plan.sweep is None:
        return {"trainer.json": _json(plan.trainer)}
    sweep = {"version": 1, "at_once": plan.sweep.at_once, "values": plan.sweep.values}
    files = {f"trainer-{n:05}.json": _json(t) for n, t in enumerate(plan.sweep.trainers)}
    return {"sweep.json": _json(sweep), **files}


def _render_submitit(plan: LaunchPlan) -> dict[str, str]:
    return {
        "launch.json": _launch(plan),
        "setup.sh": _template("slurm/setup.sh.j2", plan),
        "submitit.json": _json(submitit_settings(plan)),
        "teardown.sh": _template("slurm/teardown.sh.j2", plan),
        "trainer.json": _json(plan.trainer),
    }


def _launch(plan: LaunchPlan) -> str:
    """What whoever starts the attempts needs to know, as JSON."""
    launch = {
        "version": 1,
        "name": plan.name,
        "num_nodes": plan.num_nodes,
        "node_sizes": plan.node_sizes,
        "ranks_per_node": plan.ranks_per_node,
        "failures": plan.failures,
        "requeues": plan.requeues,
        "deadline_s": plan.deadline_s,
        "start_timeout_s": plan.start_timeout_s,
        "shutdown_timeout_s": plan.shutdown_timeout_s,
    }
    if plan.limits.queue_s is not None:
        launch["queue_timeout_s"] = plan.limits.queue_s
    if plan.chosen:  # nobody but people reads it
        launch["chosen"] = list(plan.chosen)
    return _json(launch)


# Templates in templates/k8s/, each an object.
_OBJECTS = {
    "job": ("config", "service", "job"),
    "jobset": ("config", "jobset"),
    "pytorchjob": ("config", "pytorchjob"),
    "trainjob": ("config", "runtime", "trainjob"),
}
_RENDERERS: dict[str, Callable[[LaunchPlan], dict[str, str]]] = {
    "local": _render_local,
    "slurm": _render_slurm,
    **dict.fromkeys(_OBJECTS, _render_kubernetes),
}


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def _template(name: str, plan: LaunchPlan, **more: object) -> str:
    short = ("interface", "start_timeout_s", "shutdown_timeout_s")
    more["network_arguments"] = network_arguments(plan)
    names = {**vars(plan), **{name: getattr(plan, name) for name in short}, **more}
    return _environment().get_template(name).render(plan=plan, **names)


@functools.cache
def _environment() -> jinja2.Environment:
    """The templates, each compiled once: the manifests of a run are rendered twice."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_folder()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # no HTML: each value passes the `sh` or the `yaml` filter
    )
    environment.filters["sh"] = _word
    environment.filters["directive"] = _directive
    environment.filters["comment"] = _one_line
    environment.filters["yaml"] = _yaml
    return environment


def _word(value: str) -> str:
    """A value as one word of the shell; quoted also where NAME==VALUE would look like a slip."""
    word = shlex.quote(value)
    return f"'{word}'" if word.startswith("=") else word


def _directive(value: str) -> str:
    """A value as one word for sbatch, which reads a directive as a shell would but for backslashes:
    they escape inside single quotes too (seen on Slurm 22.05 and 24.11)."""
    return shlex.quote(value.replace("\\", "\\\\"))


def _yaml(value: object) -> str:
    """A value in YAML's flow style: JSON, but for what YAML wants escaped where JSON does not."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    """YAML 1.2, "5.7. Escaped Characters"."""
    return f"\\U{ord(character):08x}"


def _one_line(text: str) -> str:
    """`text` fit for a comment: a line break in it would end the comment."""
    return " ".join(text.split())
