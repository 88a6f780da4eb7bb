"""The `orchestrate` command. A subcommand is imported when it is called: `--version` costs click.

Exit codes: 0 done, 1 failure, 2 a fault in what was given (usage errors too), 130 Ctrl-C.
"""
# ruff: noqa: E402

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import sys
from typing import Any

# Start-up makes many objects and next to no garbage: Python's own limit of 700 new objects would
# have them searched dozens of times, from the imports below on. A command that runs for long
# still collects.
NEW_OBJECTS_UNTIL_COLLECTION = 200_000
gc.set_threshold(NEW_OBJECTS_UNTIL_COLLECTION)

import click

from orchestrator import __version__
from orchestrator.errors import OrchestrateError, printable

# Name of the command: module under orchestrator.cli that holds it, in the order of --help.
COMMANDS = {
    "init": "init",
    "validate": "validate",
    "render": "render",
    "diff": "diff",
    "submit": "submit",
    "status": "status",
    "checkpoints": "checkpoints",
    "report": "report",
    "compare": "compare",
    "logs": "logs",
    "watch": "watch",
    "wait": "wait",
    "cancel": "cancel",
    "node": "node",
    "list": "list_runs",  # a submodule `list` would hide the builtin in this package
    "check": "check",
    "explain": "explain",
    "plan": "plan",
    "bench": "bench",
    "fabric": "fabric",
    "schema": "schema",
    "trust": "trust",
    "completion": "completion",
}


class LazyGroup(click.Group):
    """A group that imports a command's module only when the command is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"orchestrator.cli.{COMMANDS[cmd_name]}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(error.message + _did_you_mean(args[0]), ctx) from None


def _did_you_mean(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, COMMANDS, n=1)
    return f" Did you mean {close[0]!r}?" if close else f" Commands: {', '.join(COMMANDS)}."


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="orchestrate")
def orchestrate() -> None:
    """One job file for PyTorch training on a laptop, on Slurm and on Kubernetes.

    \b
    orchestrate init job.yaml            write a job file that runs here
    orchestrate validate job.yaml        find all its faults, with line and fix
    orchestrate submit job.yaml --watch  start it and follow it

    Exit codes: 0 done; 1 failure; 2 a fault in what was given; 130 Ctrl-C.
    """


def main(argv: list[str] | None = None) -> Any:
    """Run the command line and leave with its exit code; a user's mistake gets a message alone."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file's name may hold what UTF-8 has not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = orchestrate.main(args=argv, prog_name="orchestrate", standalone_mode=False)
    except click.ClickException as error:
        words = io.StringIO()
        error.show(words)
        _complain(words.getvalue().rstrip("\n"))
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except OrchestrateError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of our output has gone: `orchestrate list | head -1`
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        from orchestrator.cli.common import os_error_words

        _complain(f"failed: {os_error_words(error)}")
        sys.exit(1)
    finally:
        _close_output()
        gc.freeze()  # the collection at exit would search all that is loaded, for nothing
    sys.exit(code if isinstance(code, int) else 0)


def _complain(text: str) -> None:
    """Print text to standard error, so that nothing in it can steer a terminal."""
    with contextlib.suppress(OSError):  # there is no other place for words
        click.echo("\n".join(printable(line) for line in text.split("\n")), err=True)


def _close_output() -> None:
    """Let what cannot be written go, or Python would try again at exit, and complain."""
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
