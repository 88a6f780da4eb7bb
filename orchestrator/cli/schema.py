"""`orchestrate schema`: the job file's JSON Schema."""

from __future__ import annotations

import click

from orchestrator.cli.common import print_json


@click.command(name="schema")
def command() -> None:
    """Print the JSON Schema of the job file, for editors and other checkers.

    \b
    Example:
      orchestrate schema > job.schema.json
      # then as the first line of job.yaml:
      # yaml-language-server: $schema=job.schema.json
    """
    from orchestrator.spec import json_schema

    print_json(json_schema())
