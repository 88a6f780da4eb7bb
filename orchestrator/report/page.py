"""The pages: templates/report/ filled in. Everything that is put in is escaped.

A page may load nothing and run nothing: its own policy allows its own style sheet alone, by hash.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from orchestrator import __version__
from orchestrator.goodput import words_of
from orchestrator.report.clean import Mask
from orchestrator.report.compare import different_keys, mask_of, table
from orchestrator.report.curves import charts_of, charts_together
from orchestrator.report.files import Run
from orchestrator.report.measured import against_plan, caveats, collectives, planned_rest, tiles
from orchestrator.report.timeline import css, shares, spans_of, time_bar, timeline
from orchestrator.template_folder import template_folder

MAX_ROWS = 500  # of a table: the newest
AGREES = ((True, "yes"), (False, "no"))
MAX_TEXT = 200_000  # characters of one file


def report_page(run: Run) -> str:
    """The page of one run, as HTML. The same run gives the same text."""
    spans = spans_of(run)
    return _filled(
        "report.html.j2",
        run.mask,
        run=run,
        told=run.told,
        tiles=tiles(run),
        charts=charts_of(run),
        timeline=timeline(run),
        time_bar=time_bar(run.goodput) if run.goodput else [],
        shares=shares(run.goodput) if run.goodput else [],
        spans={n: words_of(end - begin) for n, (begin, end) in spans.items()},
        attempts=run.attempts[-MAX_ROWS:],
        faults=[a for a in run.attempts if a.reason and a.result not in ("done", "drained")][-20:],
        saved=list(run.told.saved)[-MAX_ROWS:],
        notes=list(run.told.notes)[-MAX_ROWS:],
        plan_rows=against_plan(run),
        plan_rest=planned_rest(run),
        facts=_facts(run),
        network=_network(run),
        traffic=collectives(run),
        caveats=caveats(run),
        sample=run.told.progress.sample,
    )


def compare_page(runs: Sequence[Run]) -> str:
    """The page of several runs together, as HTML."""
    head, *rows = table(runs)
    return _filled(
        "compare.html.j2",
        mask_of(runs),
        runs=runs,
        charts=charts_together(runs),
        head=head,
        rows=rows,
        keys=different_keys(runs),
    )


def _facts(run: Run) -> list[tuple[str, str]]:
    """Where and with what it ran."""
    told, receipt = run.told, run.receipt
    last = told.starts[max(told.starts)] if told.starts else None
    rows = [
        ("backend", receipt.get("backend")),
        ("submitted", receipt.get("submitted_at")),
        ("submitted from", receipt.get("host")),
        ("working folder", receipt.get("workdir")),
        ("run folder", receipt.get("run_dir")),
        ("ids", ", ".join(f"{k} {v}" for k, v in _map(receipt.get("ids")).items())),
        ("nodes", last.nodes if last else None),
        ("ranks", last.ranks if last else None),
        ("hosts", ", ".join(dict.fromkeys(told.hosts))),
        ("parameters", f"{told.parameters:,}" if told.parameters else None),
        ("tokens per step", f"{run.tokens_per_step:,}" if run.tokens_per_step else None),
        ("orchestrate, when submitted", receipt.get("tool_version")),
        *run.versions.items(),
    ]
    return [(name, str(value)) for name, value in rows if value not in (None, "")]


def _network(run: Run) -> list[tuple[str, str]]:
    """What the trainer has seen of the network (docs/network-proof.md)."""
    event = run.told.network
    if event is None:
        return []
    counted = {key: _map(event.get(key)) for key in ("transports", "within")}
    named = {
        key: ", ".join(f"{n} ({c})" for n, c in found.items()) for key, found in counted.items()
    }
    agrees = next((word for said, word in AGREES if event.get("agrees") is said), "not known")
    rows = [
        ("backend", event.get("backend")),
        ("agrees with what is promised", agrees),
        ("between nodes", named["transports"]),
        ("within a node", named["within"]),
        ("promised", _list(event.get("promised"))),
        ("interface", event.get("interface")),
        ("faults", _list(event.get("faults"))),
        ("not known because", event.get("unknown")),
    ]
    return [(name, str(value)) for name, value in rows if value not in (None, "", [])]


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> str:
    return "; ".join(str(one) for one in value[:64]) if isinstance(value, list) else ""


def _filled(name: str, mask: Mask, **values: Any) -> str:
    environment = _environment()
    style = environment.get_template("style.css").render(mask=Mask())
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    template = environment.get_template(name)
    return template.render(mask=mask, style=style, style_hash=digest, version=__version__, **values)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_folder() / "report"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=True,
        finalize=_fit,
    )
    environment.filters["css"] = css
    environment.filters["cut"] = _cut
    return environment


@jinja2.pass_context
def _fit(context: jinja2.runtime.Context, value: Any) -> Any:
    """A value as text without secrets and control characters; what is HTML already stays."""
    if hasattr(value, "__html__") or isinstance(value, (int, float)):
        return value
    mask: Mask = context["mask"]
    return mask.shown(str(value))


def _cut(value: str) -> str:
    """A text that is no longer than a page bears."""
    if len(value) <= MAX_TEXT:
        return value
    return f"{value[:MAX_TEXT]}\n... and {len(value) - MAX_TEXT:,} characters more"
