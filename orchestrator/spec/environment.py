"""Environment variables in the job file: names, reserved names, and no secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from orchestrator.errors import quoted
from orchestrator.secret_text import has_secret, is_secret
from orchestrator.spec.base import KeyPath, Problem, TypeWords, problems_error

ARGUMENTS: KeyPath = ("train", "model", "args")
NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
# torchrun (PET_*, TORCHELASTIC_* and the ranks' own), Slurm and this launcher set these.
RESERVED = re.compile(
    r"(GROUP_|LOCAL_|ROLE_)?RANK|(GROUP_|LOCAL_|ROLE_)?WORLD_SIZE|ROLE_NAME"
    r"|MASTER_ADDR|MASTER_PORT|(PET|ORCHESTRATE|TORCHELASTIC|SLURM)_.*"
)
# Bash Reference Manual, "Bash Variables": readonly, so that an export ends the script; and those to
# which "assignments have no effect".
BASH_OWN = re.compile(
    r"BASHOPTS|BASH_VERSINFO|EUID|PPID|SHELLOPTS|UID"
    r"|BASHPID|BASH_ARGC|BASH_ARGV|BASH_LINENO|BASH_SOURCE|DIRSTACK|FUNCNAME|GROUPS"
)
# execve(2), "Limits on size of arguments and environment": 32 pages for NAME=VALUE and its NUL.
MAX_BYTES = 32 * 4096
SECRET_FIX = (
    "remove it here; on Slurm and on this machine set it in the shell that submits, or let the "
    "program read a file; on Kubernetes name a Secret in kubernetes.secret_env"
)


def _check(value: object) -> object:
    if not isinstance(value, dict):
        return value
    problems = [p for name, text in value.items() for p in variable_problems(str(name), text)]
    if problems:
        raise problems_error(problems)
    return value


def variable_problems(name: str, value: object) -> Iterator[Problem]:
    if not re.fullmatch(NAME_PATTERN, name, re.ASCII):
        yield Problem(
            (name,),
            f"{quoted(name)} cannot be the name of an environment variable",
            "use letters, digits and underscores, and no digit first",
            at="key",
        )
    elif RESERVED.fullmatch(name):
        yield Problem(
            (name,),
            f"{name} is set by the launcher for each rank; a value here would break the job",
            "remove it",
            at="key",
        )
    elif BASH_OWN.fullmatch(name):
        yield Problem(
            (name,),
            f"{name} is bash's own, and bash lets nobody set it; a value here would break the job",
            "remove it, or give the variable another name",
            at="key",
        )
    if isinstance(value, (str, int, float)) and is_secret(name, str(value)):
        yield secret_problem((name,))
    elif not isinstance(value, str):
        yield _not_text(name, value)
    elif "\0" in value:
        yield Problem((name,), "a NUL character cannot be in an environment variable", "remove it")
    elif len(f"{name}={value}".encode()) >= MAX_BYTES:
        yield Problem(
            (name,),
            f"longer than Linux lets a variable be, {MAX_BYTES // 1024} KiB with its name",
            "put it in a file that the program reads",
        )
    elif name == "NCCL_SOCKET_IFNAME" and _lets_loopback_in(value):
        yield Problem(
            (name,),
            "a list of what to leave out replaces NCCL's own, and without lo in it NCCL may take "
            "the loopback interface",
            f"write {value},lo or use network.interface",
        )


def secret_problem(path: KeyPath) -> Problem:
    """Return the problem with the value of a secret at a path."""
    name = path[-1] if path and isinstance(path[-1], str) else "this"
    message = f"{name} looks like a secret, and a value here would be readable in rendered files"
    return Problem(path, message, SECRET_FIX, at="key")


def secret_problems(data: object, path: KeyPath = ()) -> Iterator[Problem]:
    """Yield each text of a job that looks like a secret, whatever it is for, and the arguments of
    the model's factory that are named like one, with paths from the job's root."""
    if isinstance(data, (dict, list)):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from secret_problems(value, (*path, key))
    elif isinstance(data, str):
        names = [part for part in path[len(ARGUMENTS) :] if isinstance(part, str)]
        is_argument = path[: len(ARGUMENTS)] == ARGUMENTS and names
        if is_secret(names[-1], data) if is_argument else has_secret(data):
            yield secret_problem(path)


def _lets_loopback_in(value: str) -> bool:
    """Whether a list of interfaces to leave out has no lo: each is the beginning of a name, or with
    "=" before the list a whole one (NCCL user guide, NCCL_SOCKET_IFNAME)."""
    if not value.startswith("^"):
        return False
    if value.startswith("^="):
        return "lo" not in value[2:].split(",")
    return not any(name and "lo".startswith(name) for name in value[1:].split(","))


def _not_text(name: str, value: object) -> Problem:
    if isinstance(value, (bool, int, float)):
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        return Problem(
            (name,),
            "the value of an environment variable is a text",
            f'put it in quotes: {name}: "{shown}"',
        )
    given = "nothing" if value is None else f"a {'list' if isinstance(value, list) else 'map'}"
    return Problem(
        (name,),
        f"the value of an environment variable is a text, not {given}",
        f'write {name}: "..."' if value is not None else f'write {name}: "" for an empty value',
    )


Environment = Annotated[
    dict[str, str],
    BeforeValidator(_check),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": NAME_PATTERN},
            "additionalProperties": {"type": "string"},
        }
    ),
    TypeWords("map of variable names to texts"),
]
"""Names to values, checked."""
