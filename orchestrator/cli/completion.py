"""`orchestrate completion`: the shell's completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(name="completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    Examples:
      orchestrate completion bash > ~/.local/share/bash-completion/completions/orchestrate
      eval "$(orchestrate completion zsh)"
    """
    from orchestrator.cli import orchestrate

    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise click.UsageError(f"no completion for {shell}")
    completion = completion_class(orchestrate, {}, "orchestrate", "_ORCHESTRATE_COMPLETE")
    click.echo(completion.source())
