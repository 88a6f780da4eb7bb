"""Reading and writing a run folder, here or elsewhere, through one small interface."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Protocol, runtime_checkable

from orchestrator.errors import BackendError

READ_LIMIT_BYTES = 16 * 1024 * 1024
FILE, FOLDER, MISSING = "file", "folder", "missing"
OUTSIDE = "a link that leads out of the run folder"
BROKEN = "a link that leads nowhere"
OTHER = "neither a file nor a folder"
REFUSED = "not allowed to be read"
HASH_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class FileFacts:
    """size_bytes, and when it was last written, in seconds since 1970 by the clock there."""

    size_bytes: int
    modified: float


class RunStore(Protocol):
    """A run folder. Paths are relative to it, with "/" between the parts."""

    def list(self, folder: str = "") -> list[str]:
        """Names in a folder, sorted; none if the folder is not there."""
        ...

    def read(self, path: str) -> bytes:
        """A whole file. Raises BackendError if it cannot be read or is larger than 16 MiB."""
        ...

    def tail(self, path: str, offset: int) -> bytes:
        """Up to 16 MiB from byte `offset` on; empty at the end or if there is no such file."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Write a file at once: a reader sees the old content or the new one."""
        ...

    def files(self, folder: str) -> dict[str, FileFacts]:
        """All files below a folder, by path from there; none if the folder is not there.

        Raises BackendError or OSError if a part of it cannot be seen.
        """
        ...

    def ends(self, paths: Sequence[str], limit_bytes: int) -> Sequence[bytes]:
        """The last bytes of many files at once; b"" for each that cannot be read."""
        ...

    def kinds(self, paths: Sequence[str]) -> Sequence[str]:
        """What each path is: FILE, FOLDER, MISSING, or a reason not to read it, in words."""
        ...

    def sha256(self, paths: Sequence[str]) -> Sequence[str]:
        """The SHA-256 of each file, made where the files are.

        Raises BackendError or OSError if one cannot be read.
        """
        ...

    def remove(self, folder: str) -> None:
        """Remove a folder, if it is there, with all in it. Raises BackendError if it stays."""
        ...


@dataclass(frozen=True)
class LogLine:
    """A line that a run has printed.

    Args:
        attempt: its attempt, from 1; None if that is not known yet.
        node: on which node of the run, from 0; None if that is not known.
        rank: which rank; None for the launcher's own words and those of other containers.
        container: of the pod, where it is not the launcher's; "" for that.
        pod: name of the pod.
        text: without line end.
    """

    attempt: int | None
    node: int | None
    rank: int | None
    container: str
    pod: str
    text: bytes

    @property
    def prefix(self) -> str:
        """Who has printed it."""
        who = f"rank {self.rank}" if self.rank is not None else f"node {self.node}"
        who = self.pod if self.rank is None and self.node is None else who
        return f"[{self.attempt or '-'}] {who}{f' ({self.container})' if self.container else ''} | "


class Logs(Protocol):
    """What all nodes of a run print, where that is more than the logs of the ranks."""

    def all(self) -> Iterator[LogLine]:
        """What the newest attempt has printed until now."""
        ...

    def new(self) -> Iterator[LogLine]:
        """What was printed since the last call."""
        ...

    def rest(self) -> Iterator[LogLine]:
        """What is left once the run has ended."""
        ...


@runtime_checkable
class WithLogs(Protocol):
    """A run store that has them."""

    def merged_logs(self) -> Logs: ...


@runtime_checkable
class Enterable(Protocol):
    """A run store that needs something running at the place of the run folder."""

    def entered(self) -> AbstractContextManager[None]:
        """While this lasts, that is there. Raises BackendError where it does not start."""
        ...


class LocalRunStore:
    """A run folder in a file system of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def list(self, folder: str = "") -> list[str]:
        try:
            return sorted(os.listdir(self._path(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, path: str) -> bytes:
        where = self._path(path)
        try:
            with open(where, "rb", opener=at_once) as file:
                data = file.read(READ_LIMIT_BYTES + 1)
        except OSError as error:
            raise BackendError(f"{where}: {error.strerror}") from None
        if len(data) > READ_LIMIT_BYTES:
            raise BackendError(f"{where}: larger than {READ_LIMIT_BYTES} bytes; read it by tail")
        return data

    def tail(self, path: str, offset: int) -> bytes:
        try:
            with open(self._path(path), "rb", opener=at_once) as file:
                file.seek(offset)
                return file.read(READ_LIMIT_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return b""

    def write(self, path: str, data: bytes) -> None:
        where = self._path(path)
        aside = where.with_name(f".{where.name}.{os.getpid()}")
        try:
            where.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(where)
        except OSError as error:
            raise BackendError(f"{where}: cannot write it: {error.strerror}") from None

    def files(self, folder: str) -> dict[str, FileFacts]:
        root = self._path(folder)
        found = {}
        for name in _walk(root):
            try:
                facts = (root / name).lstat()
            except FileNotFoundError:
                continue  # a run that goes on removes old checkpoints
            found[name] = FileFacts(facts.st_size, facts.st_mtime)
        return found

    def ends(self, paths: Sequence[str], limit_bytes: int) -> Sequence[bytes]:
        return [end_of(self._path(path), limit_bytes) for path in paths]

    def kinds(self, paths: Sequence[str]) -> Sequence[str]:
        return [kind_of(self.root, self._path(path)) for path in paths]

    def sha256(self, paths: Sequence[str]) -> Sequence[str]:
        return [_sha256(self._path(path)) for path in paths]

    def remove(self, folder: str) -> None:
        where = self._path(folder)
        try:
            shutil.rmtree(where)
        except FileNotFoundError:
            return
        except OSError as error:
            raise BackendError(f"{where}: cannot remove it: {error}") from None

    def _path(self, path: str) -> Path:
        return self.root / inside(path)


def _walk(root: Path) -> list[str]:
    """The paths of all files below `root`; a folder that cannot be seen raises OSError."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # removed meanwhile
            raise error

    return [
        os.path.relpath(os.path.join(folder, name), root)
        for folder, _, names in os.walk(root, onerror=refuse)
        for name in names
    ]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def end_of(path: PurePath, limit_bytes: int) -> bytes:
    """The last bytes of a file; b"" if it cannot be read."""
    try:
        with open(path, "rb", opener=at_once) as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, size_bytes - limit_bytes))
            return file.read(limit_bytes)
    except OSError:
        return b""


def at_once(path: str, flags: int) -> int:
    """For open(): a pipe that nobody writes to is refused, as all else that is no file, in place
    of a wait for ever. Raises OSError; for a folder that is left to open()."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, OTHER, str(path))


def kind_of(root: Path, path: Path) -> str:
    """What a path below the run folder `root` is, as RunStore.kinds says it."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return BROKEN if path.is_symlink() else MISSING
    except OSError as error:
        return BROKEN if error.errno == errno.ELOOP else REFUSED
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        return OUTSIDE
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return OTHER
    if not os.access(path, os.R_OK):
        return REFUSED
    return FILE if stat.S_ISREG(mode) else FOLDER


def inside(path: str) -> PurePosixPath:
    """A path that stays in the run folder. Raises BackendError for any other."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or "\0" in path:
        raise BackendError(f"{path!r}: a path in a run folder is relative and without '..'")
    return parts
