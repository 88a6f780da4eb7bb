"""Values that have broken renderers, and jobs made of them."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from k8s.objects import manifests, pod_templates
from k8s.sites import NEUTRAL, render_job
from orchestrator.errors import FaultsError

PIECES = [
    *('"', "'", "\\", "\\n", "`", "@", "%", "|", ">", "&a", "*a", "!!str", "?", "-", "- ", ","),
    *("\n", "\r\n", "\r", "\t", " ", "\n---\n", "...", ": ", ":", " #", "#", "[", "]", "{", "}"),
    *("$", "$$", "$(", ")", "$(HOME)", "$(ORCHESTRATE_POD_IP)", "$$(HOME)", "$(NONE)", "${HOME}"),
    *("{{ name }}", "{% endfor %}", "{# #}", "`id`", "$(id)", "; id", "&& id"),
    *(
        "yes",
        "no",
        "on",
        "y",
        "~",
        "null",
        "true",
        "0x1f",
        "017",
        "0o17",
        "1e3",
        "12:00:00",
        ".inf",
    ),
    *("=", "<<", "2026-11-30", "1_000", "é", "\u4e2d", "\U0001f600", "\u2028", "\u0085", "\u00a0"),
    *("\ufeff", "\x01", "\x1b[31m", "\x7f", "\0", "x" * 5000),
]
hostile = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=6).map("".join)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
few = settings(quick, max_examples=25)


def job_text(site: dict[str, Any], **keys: object) -> str:
    """A job file as JSON, which is YAML; what is not printable in the escapes of YAML."""
    job = {
        "name": "hostile",
        "train": {"model": {"preset": "nano"}, "data": {"python_docs": True}, "steps": 10},
        "clusters": {"site": {"kubernetes": site}},
        **keys,
    }
    # "$${" is how a job file writes "${", which begins a variable of whoever submits.
    text = json.dumps(job, ensure_ascii=False).replace("${", "$${")
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def objects_or_fault(
    target: str, site: dict[str, Any], **keys: object
) -> dict[str, dict[str, Any]] | None:
    """The objects by kind; None where the job is refused, with the place of the fault."""
    try:
        files = render_job(job_text(site, **keys), target, NEUTRAL).files
    except FaultsError as refusal:
        check_located(refusal)
        return None
    found = [manifests(text) for name, text in files.items() if name.endswith(".yaml")]
    assert {len(documents) for documents in found} == {1}
    return {documents[0]["kind"]: documents[0] for documents in found}


def check_located(refusal: FaultsError) -> None:
    assert re.match(r"job\.yaml:\d+:\d+:? ", str(refusal))


def containers(objects: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        template.spec["containers"][0]
        for manifest in objects.values()
        for template in pod_templates(manifest)
    ]


def expanded(text: str, variables: dict[str, str]) -> str:
    """`text` as the kubelet gives it to a process.

    Kubernetes API reference, Container `args` and EnvVar `value`: a reference $(NAME) becomes the
    variable's value, and stays where there is no such variable; $$ becomes one $.
    """

    def replaced(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replaced, text, flags=re.DOTALL)


def environment(container: dict[str, Any]) -> dict[str, str]:
    """The variables with a value of their own as the process sees them, each from those before."""
    seen = {"ORCHESTRATE_POD_IP": "10.0.0.7"}
    for variable in container["env"]:
        if "value" in variable:
            seen[variable["name"]] = expanded(variable["value"], seen)
    return seen
