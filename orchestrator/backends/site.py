"""Where a scheduler's commands are run and its run folders lie: here, or behind ssh.

A backend that works by commands and a shared file system gets both from one `Site`, and does not
know which one it has.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Protocol

from orchestrator.backends.runstore import LocalRunStore, RunStore, end_of
from orchestrator.errors import BackendError

COMMAND_TIMEOUT_S = 60.0
COMMAND_MISSING = 127  # what a shell says where it finds no such command (POSIX sh, 2.8.2)


@dataclass(frozen=True)
class Completed:
    """A command that has ended.

    Args:
        code: its exit code; 128 and the signal's number if a signal ended it.
        raw: its standard output.
        stderr: its standard error, with a replacement character for what is no UTF-8.
    """

    code: int
    raw: bytes
    stderr: str

    @property
    def stdout(self) -> str:
        """Its standard output, with a replacement character for what is no UTF-8."""
        return self.raw.decode(errors="replace")


class Site(Protocol):
    """A machine with the scheduler's commands, and the file system of the run folders.

    Every method raises BackendError where the machine cannot be reached or does not answer in
    time; the text names it.
    """

    @property
    def label(self) -> str:
        """The machine, as a message names it."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> Completed:
        """Run a command to its end; any exit code of its own is returned.

        Args:
            argv: the command and its arguments; no shell sees them.
            stdin: its standard input; empty without.

        Raises BackendError if there is no such command, or if it does not end in `timeout_s`: it
        may have done its work all the same.
        """
        ...

    def absolute(self, path: str) -> Path:
        """A path of that machine, made absolute; `~/` and relative ones as that machine's."""
        ...

    def store(self, root: PurePath) -> RunStore:
        """Access to the run folder `root`, which is absolute."""
        ...

    def put(self, files: Mapping[str, bytes], root: PurePath) -> None:
        """Write files below `root` in the order given, each at once; folders are made.

        Args:
            files: content by relative path, with "/" between the parts.
        """
        ...

    def ends(self, paths: Sequence[PurePath], limit_bytes: int) -> list[bytes]:
        """The last bytes of many files, by one command; b"" for each that cannot be read.

        Args:
            paths: absolute.
            limit_bytes: how much of each at most.
        """
        ...


class LocalSite:
    """This machine.

    Args:
        environ: the environment of its commands; this process's own without.
    """

    label = "this machine"

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.environ = environ

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> Completed:
        try:
            code, output, errors = _run(argv, stdin or b"", self.environ, timeout_s)
        except FileNotFoundError:
            raise no_such_command(self.label, argv[0]) from None
        except subprocess.TimeoutExpired:
            raise no_answer(self.label, argv[0], timeout_s) from None
        except (OSError, ValueError) as error:
            raise BackendError(f"{self.label}: cannot run {argv[0]!r}: {error}") from None
        return Completed(code if code >= 0 else 128 - code, output, errors.decode(errors="replace"))

    def absolute(self, path: str) -> Path:
        return Path(path).expanduser().absolute()

    def store(self, root: PurePath) -> RunStore:
        return LocalRunStore(Path(root))

    def put(self, files: Mapping[str, bytes], root: PurePath) -> None:
        store = LocalRunStore(Path(root))
        for path, data in files.items():
            store.write(path, data)

    def ends(self, paths: Sequence[PurePath], limit_bytes: int) -> list[bytes]:
        return [end_of(path, limit_bytes) for path in paths]


def _run(
    argv: Sequence[str], stdin: bytes, environ: Mapping[str, str] | None, timeout_s: float
) -> tuple[int, bytes, bytes]:
    """Run a command; past its time, end it with all that it has started: a site's own wrapper
    script around sbatch would leave a child that keeps the pipes open."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(stdin, timeout_s)
        except BaseException:  # Ctrl-C too: in a session of its own the command does not get it
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output, errors


def no_such_command(label: str, command: str) -> BackendError:
    """The error for a command that a site does not have."""
    return BackendError(
        f"{label}: no command {command!r}. Is this the machine from which jobs are submitted? "
        "If so, PATH lacks its folder there: load the module, or set PATH in ~/.bashrc."
    )


class NoAnswer(BackendError):
    """No answer, or none but a refusal: it may be another one in a while."""


def no_answer(label: str, what: str, timeout_s: float) -> NoAnswer:
    """The error for a command that did not end in time."""
    return NoAnswer(
        f"{label}: {what} did not end within {timeout_s:g} s; it may have done its work all "
        "the same, so look before you repeat it"
    )


def site_of(ssh: str | None) -> Site:
    """The site of a profile: this machine, or the host that its `ssh` names.

    Raises BackendError if that is no name of a host.
    """
    if ssh is None:
        return LocalSite()
    from orchestrator.backends.remote import SshSite  # late: few need it

    return SshSite(ssh)
