"""Reading and writing a run folder, here or elsewhere, through one small interface."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Protocol

from orchestrator.errors import BackendError

READ_LIMIT_BYTES = 16 * 1024 * 1024


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
            with where.open("rb") as file:
                data = file.read(READ_LIMIT_BYTES + 1)
        except OSError as error:
            raise BackendError(f"{where}: {error.strerror}") from None
        if len(data) > READ_LIMIT_BYTES:
            raise BackendError(f"{where}: larger than {READ_LIMIT_BYTES} bytes; read it by tail")
        return data

    def tail(self, path: str, offset: int) -> bytes:
        try:
            with self._path(path).open("rb") as file:
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

    def _path(self, path: str) -> Path:
        return self.root / inside(path)


def inside(path: str) -> PurePosixPath:
    """A path that stays in the run folder. Raises BackendError for any other."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or "\0" in path:
        raise BackendError(f"{path!r}: a path in a run folder is relative and without '..'")
    return parts
