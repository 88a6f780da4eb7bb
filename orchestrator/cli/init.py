"""`orchestrate init`: a job file to start from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click

from orchestrator.cli.common import say, shell_path
from orchestrator.errors import UserError, printable, quoted

SCHEMA_NAME = ".orchestrate.schema.json"

_JOB = """\
# yaml-language-server: $schema={schema}
# Check it: orchestrate validate {file}      Run it: orchestrate submit {file} --watch
# Any key: orchestrate explain train.data
name: {name}
resources:
  nodes: 2            # simulated on this machine, real ones on a cluster
  ranks_per_node: 2   # processes per node; on GPUs set gpus_per_node instead
train:
  model: {{preset: nano}}
  data: {{python_docs: true}}   # text that every Python carries; your own: text: "data/*.txt"
  batch: {{micro: 8}}           # sequences per rank and micro-batch
  optimizer: {{lr: 0.003}}
  steps: 200
checkpoint:
  every: 100          # steps
"""


@click.command(name="init")
@click.argument("job", type=click.Path(path_type=Path), default="job.yaml", metavar="[JOB.YAML]")
@click.option("--name", metavar="NAME", help="The run's name; the file's name where not given.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def command(job: Path, name: str | None, force: bool) -> None:
    """Write a small job file that runs as it is, and its schema for editors.

    \b
    Examples:
      orchestrate init
      orchestrate init experiments/first.yaml --name first
    """
    from orchestrator.spec import json_schema

    if not str(job).isprintable():
        raise UserError(f"{printable(str(job))}: a character in it cannot be shown; rename it")
    written = _name(_name_from(job) if name is None else name)
    if job.exists() and not force:
        raise UserError(f"{job}: exists already. Name another file, or overwrite it with --force.")
    schema = job.parent / SCHEMA_NAME
    text = _JOB.format(schema=SCHEMA_NAME, file=shell_path(Path(job.name)), name=written)
    try:
        job.parent.mkdir(parents=True, exist_ok=True)
        schema.write_text(json.dumps(json_schema(), indent=2, sort_keys=True) + "\n", "utf-8")
        job.write_text(text, "utf-8")
    except OSError as error:
        raise UserError(
            f"{job}: cannot write ({error.strerror}). Name a folder that you may write to."
        ) from None
    say(f"wrote {job} and {schema}; next: orchestrate submit {shell_path(job)} --watch")


def _name(name: str) -> str:
    """Return a run's name as YAML has it: in quotes if it would be no text. Raises UserError."""
    from orchestrator.source import parse_value
    from orchestrator.spec.job import name_problem

    problem = name_problem(name)
    if problem is not None:
        better = problem.fix.removeprefix("write name: ")
        raise UserError(f"{problem.message}" + (better and f"; fix: --name {better}"))
    return name if parse_value(name) == name else quoted(name, len(name))


def _name_from(job: Path) -> str:
    """A run name made of the file's name: what is not allowed in one becomes a dash."""
    name = re.sub(r"[^a-z0-9]+", "-", job.stem.lower()).strip("-")
    return name[:52].rstrip("-") if re.match(r"[a-z]", name) else f"job-{name}"[:52].rstrip("-")
