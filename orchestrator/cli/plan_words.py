"""The plan as a text for reading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator.cli.table import aligned
from orchestrator.estimate.lines import yaml_lines
from orchestrator.estimate.reason import gb, gib, seconds, shape_words
from orchestrator.units import format_duration

if TYPE_CHECKING:
    from orchestrator.cli.plan import Planned
    from orchestrator.estimate.figures import Estimate, Pace
    from orchestrator.estimate.grid import Cell
    from orchestrator.spec import JobSpec

LINES = {
    "parameters": "parameters, as held between steps",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "buffers": "buffers of the model",
    "buckets": "buckets and buffers of reductions",
    "unsharded": "gathered or whole for a while",
    "activations": "activations",
    "logits": "logits",
    "working": "working memory of operations",
    "overhead": "context of the device",
}
LIMITS = {
    "compute": "computation",
    "host": "the host, which starts each sharded unit",
    "copies": "copies between the CPU's memory and the device",
    "inside": "the links inside a node",
    "between": "the network between nodes",
}
SWEEP = "the sweep's elements: the figures are of the job without it"


def plan_text(spec: JobSpec, planned: Planned) -> str:
    """Return all sections, each behind a line of its own."""
    one = planned.estimate
    blocks = [
        [_head(spec, planned)],
        ["MEMORY of the fullest rank, " + _moment(one), *_memory(planned)],
        ["TRAFFIC of a rank in one step", *_traffic(one)],
        ["TIME", *_time(planned, spec)],
        ["ADVICE", *_advice(planned)],
    ]
    left_out = [*one.left_out, *([SWEEP] if spec.sweep else [])]
    if left_out:
        blocks.append(["NOT IN THESE FIGURES", *(f"  {words}" for words in left_out)])
    return "\n\n".join("\n".join(block) for block in blocks)


def _head(spec: JobSpec, planned: Planned) -> str:
    setting, outline = planned.estimate.setting, planned.question.outline
    card = planned.question.hardware.card
    parts = [
        f"{spec.name}: {setting.num_nodes} x {setting.ranks_per_node} ranks",
        shape_words(setting),
        f"{setting.precision}, {outline.numel:,} parameters",
        f"{setting.tokens_per_step:,} tokens a step",
    ]
    return ", ".join(parts) + (f", on {card}" if card else "")


def _moment(one: Estimate) -> str:
    words = {"optimizer": "in the optimizer's step", "forward": "at the end of the forward pass"}
    return f"at its peak {words.get(one.memory.at, f'in the {one.memory.at} pass')}"


def _memory(planned: Planned) -> Iterator[str]:
    one = planned.estimate
    rows = [(LINES[name], gib(size)) for name, size in one.memory.lines.items() if size]
    rows.append(("all", f"{gib(one.memory.total)}{_verdict(planned)}"))
    if one.memory.host:
        rows.append(("on the CPU, for each rank", gib(one.memory.host)))
    yield from _indented(rows)


def _verdict(planned: Planned) -> str:
    one, question = planned.estimate, planned.question
    if question.hardware.memory_bytes is None:
        return ""
    from orchestrator.estimate.whole import FITS

    obstacle = question.obstacle(one.setting)
    verdict = f"does NOT fit: needs {obstacle}" if obstacle else "fits"
    if obstacle == gib(one.memory.total):
        verdict = "does NOT fit"
    return f" of {gib(question.hardware.memory_bytes)}: {verdict} ({FITS:.0%} are counted on)"


def _traffic(one: Estimate) -> Iterator[str]:
    transfers = one.traffic.transfers
    if not transfers:
        yield "  nothing: there is one rank"
        return
    where = {"inside": "inside a node", "between": "between nodes"}
    rows = [("OF WHAT", "BY", "CALLS", "RANKS", "SENT", "WHERE")]
    rows += [
        (t.what, t.kind, str(t.count), str(t.group_size), gb(t.sent_bytes), where[t.span])
        for t in transfers
    ]
    yield from _indented(rows)
    for span, words in where.items():
        if any(t.span == span for t in transfers):
            yield f"  {words}: {gb(one.traffic.sent_bytes(span))} a rank{_span_time(one, span)}"
    if one.setting.num_nodes > 1:
        yield f"  out of each node: {gb(one.traffic.node_bytes)}"


def _span_time(one: Estimate, span: str) -> str:
    if one.pace is None:
        return ""
    return f", {seconds(one.pace.inside_s if span == 'inside' else one.pace.between_s)}"


def _time(planned: Planned, spec: JobSpec) -> Iterator[str]:
    pace = planned.estimate.pace
    if pace is None:
        yield f"  is not known without {', and '.join(_missing(planned))}."
        return
    rows = [
        ("one step", f"{seconds(pace.step_s)}: {_parts(pace)}"),
        ("throughput", f"{pace.tokens_per_s:,.0f} tokens/s"),
        ("to the end", f"{_long(pace.total_s)} for {spec.train.steps:,} steps{_cost(pace)}"),
        ("the limit", LIMITS.get(pace.bound, pace.bound)),
    ]
    yield from _indented(rows)


def _missing(planned: Planned) -> Iterator[str]:
    """What the time needs, and the key that gives it."""
    one, hardware = planned.estimate, planned.question.hardware
    if one.setting.strategy == "dp":
        yield (
            "the copies of dp between its GPUs, which are not reckoned: `strategy: ddp` does the "
            "same with a process for each GPU"
        )
        return
    if hardware.peak.get(one.setting.precision) is None:
        yield (
            f"the card's speed in {one.setting.precision}: resources.gpu_type in the job file, or "
            "`hardware: {card: NAME}` in the cluster profile"
        )
    for span in sorted({transfer.span for transfer in one.traffic.transfers}):
        if getattr(hardware, span) is None:
            yield (
                f"the speed of {LIMITS[span]}: `hardware: {{{span}: {{bandwidth: 50GB/s}}}}` in "
                "the cluster profile"
            )
    if planned.question.outline.flops_per_token is None:
        yield "the operations that the model needs for a token"


def _parts(pace: Pace) -> str:
    parts = {
        "computation": pace.compute_s,
        "the optimizer": pace.optimizer_s,
        "the host, for sharded units": pace.host_s,
        "communication that nothing hides": pace.exposed_s,
    }
    return ", ".join(f"{seconds(time_s)} {name}" for name, time_s in parts.items() if time_s)


def _long(time_s: float) -> str:
    return format_duration(round(time_s)) if time_s >= 1 else seconds(time_s)


def _cost(pace: Pace) -> str:
    return "" if pace.cost is None else f", {pace.cost:,.2f} by price_per_gpu_hour"


def _advice(planned: Planned) -> Iterator[str]:
    advice = planned.advice
    yield f"  {advice.reason}"
    if advice.best is not None:
        yield from _best(advice.best, planned)
    if advice.runner_up is not None:
        yield f"  next best: {_figures(advice.runner_up)}"
    for remedy in advice.remedies:
        figures = f" ({_numbers(remedy.estimate)})" if remedy.estimate else ""
        yield f"  would help: {remedy.words}{figures}"


def _best(best: Estimate, planned: Planned) -> Iterator[str]:
    yield f"  best: {_figures(best)}"
    change = planned.change(best.setting)
    if not any(change):
        is_chosen = planned.resolved.written is not None
        yield f"  {'strategy: auto takes it.' if is_chosen else 'The job file says so already.'}"
    if change.set:
        yield "  write into the job file:"
        yield from (f"    {line}" for line in yaml_lines(change.set))
    if change.unset:
        yield f"  remove from it: {', '.join(change.unset)}"


def _figures(one: Estimate) -> str:
    return f"{shape_words(one.setting)}: {_numbers(one)}"


def _numbers(one: Estimate) -> str:
    time = f", {seconds(one.pace.step_s)} a step" if one.pace else ""
    return f"{gib(one.memory.total)}{time}"


def _indented(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from (f"  {line}" for line in aligned(rows).splitlines())


def cells_table(cells: Sequence[Cell]) -> str:
    """Return one row for each combination, in the order given."""
    names = list(cells[0].values)
    head = [*(name.upper() for name in names), "MEMORY", "FITS", "STEP", "TOKENS/S", "OUT OF NODE"]
    rows = [head, *(_cell_row(cell) for cell in cells)]
    problems = [f"not possible: {_values(cell)}: {cell.problem}" for cell in cells if cell.problem]
    return "\n".join([aligned(rows), *problems])


def _values(cell: Cell) -> str:
    return ", ".join(f"{name}={_word(value)}" for name, value in cell.values.items())


def _word(value: object) -> str:
    return "-" if value is None else str(value).lower()


def _cell_row(cell: Cell) -> list[str]:
    values = [_word(value) for value in cell.values.values()]
    one = cell.estimate
    if one is None:
        return [*values, "-", "-", "-", "-", "-"]
    fits = {True: "yes", False: "NO", None: "?"}[one.fits]
    time = (seconds(one.pace.step_s), f"{one.pace.tokens_per_s:,.0f}") if one.pace else ("?", "?")
    egress = gb(one.traffic.node_bytes) if one.setting.num_nodes > 1 else "-"
    return [*values, gib(one.memory.total), fits, *time, egress]
