"""What is known of the environment variables of communication libraries.

The list is data/variables.yaml: which names there are, since and until which release, and what
took a name's place. A library's list may not be whole; an unknown name is then only an unknown one.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.source import parse_document, read_bytes
from orchestrator.spec.suggest import did_you_mean

FILE = Path(__file__).parent / "data" / "variables.yaml"
# Names that are set in the hope that a library has the process group's timeout, which is an
# argument of torch.distributed.init_process_group and no variable.
GROUP_TIMEOUT = re.compile(
    r"(TORCH_)?(NCCL|RCCL|GLOO|CCL|HCCL)_(TIMEOUT|(COMM|OP|PG|GROUP|PROCESS_GROUP|COLLECTIVE|"
    r"WATCHDOG|BLOCKING_WAIT|ABORT|DEFAULT)_TIMEOUT)(_[A-Z]+)?"
)


class Variable(NamedTuple):
    """One name as one library has it; "" where nothing is known.

    Args:
        since: the release that brought it.
        until: the first release without it.
        use: the name that took its place.
    """

    name: str
    library: str
    since: str = ""
    until: str = ""
    use: str = ""


class Library(NamedTuple):
    """A library and its names.

    Args:
        prefixes: how its names begin.
        versions: the releases that the list was made from, in words.
        whole: whether a name that is not in the list is wrong in those releases.
    """

    name: str
    prefixes: tuple[str, ...]
    versions: str
    source: str
    whole: bool
    variables: dict[str, Variable]


class Remark(NamedTuple):
    """What is wrong with a variable's name, and what to do."""

    message: str
    fix: str


@cache
def libraries() -> dict[str, Library]:
    """Return all libraries by name."""
    document = parse_document(read_bytes(FILE), "variables.yaml")
    return {name: _library(name, entry) for name, entry in document.data["libraries"].items()}


def _library(name: str, entry: dict[str, Any]) -> Library:
    variables = {v: Variable(v, name, **facts) for v, facts in entry["variables"].items()}
    prefixes = tuple(entry["prefixes"])
    return Library(name, prefixes, entry["versions"], entry["source"], entry["whole"], variables)


def find(name: str) -> Variable | None:
    """Return a name as the library has it that knows it; None if none does."""
    known = (library.variables.get(name) for library in libraries().values())
    return next((variable for variable in known if variable is not None), None)


def is_communication(name: str) -> bool:
    """Return whether a name begins as those of a communication library do."""
    return any(name.startswith(library.prefixes) for library in libraries().values())


def remark(name: str) -> Remark | None:
    """Return what is wrong with the name of a variable; None if nothing is known to be.

    Only names that begin as those of a communication library do are judged.
    """
    variable = find(name)
    if variable is not None:
        return _remark_on(variable)
    if not is_communication(name):
        return None
    if GROUP_TIMEOUT.fullmatch(name):
        message = (
            f"{name} is no variable of any library: how long the ranks wait for one another is"
        )
        message += " the process group's timeout, which the launcher sets"
        return Remark(message, "write timeouts.step")
    close = did_you_mean(name, [v for lib in _of(name) for v in lib.variables])
    lists = " and ".join(f"{lib.name} ({lib.versions})" for lib in _of(name))
    if close:
        return Remark(f"{name} is not among the names of {lists}", f"did you mean {close[0]}?")
    rest = "" if all(lib.whole for lib in _of(name)) else ", a list that is not whole"
    return Remark(f"{name} is not among the names of {lists}{rest}", "check its spelling")


def _of(name: str) -> list[Library]:
    return [lib for lib in libraries().values() if name.startswith(lib.prefixes)]


def _remark_on(variable: Variable) -> Remark | None:
    """Return what to say of a known name that is no longer right."""
    name, library = variable.name, variable.library
    fix = f"write {variable.use}" if variable.use else "remove it"
    if variable.until:
        return Remark(f"{name} does nothing since {library} {variable.until}", fix)
    if variable.use:
        return Remark(f"{name} is an old name of {library}'s {variable.use}", fix)
    return None
