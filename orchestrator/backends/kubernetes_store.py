"""The run folder of a run on Kubernetes: on its volume through a running pod, and from the logs of
its pods where none runs or none may be entered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TypeVar

from orchestrator.backends.base import Handle
from orchestrator.backends.kubernetes_client import Cluster
from orchestrator.backends.kubernetes_exec import NoPod, PodShell
from orchestrator.backends.kubernetes_kept import KeptLogs, below, volume_words
from orchestrator.backends.kubernetes_kinds import Target
from orchestrator.backends.kubernetes_logs import RunLogs
from orchestrator.backends.kubernetes_reader import reader_pod
from orchestrator.backends.remote import SshRunStore
from orchestrator.backends.runstore import (
    FILE,
    FOLDER,
    MISSING,
    READ_LIMIT_BYTES,
    FileFacts,
    RunStore,
    inside,
)
from orchestrator.errors import BackendError

# So much of what was read last tells, in another copy of the file, where that was.
ANCHOR_BYTES = 512
T = TypeVar("T")


def store_of(cluster: Cluster, target: Target, handle: Handle) -> RunStore:
    """Access to the run folder of a run."""
    return PodRunStore(cluster, target, handle.run, handle.run_dir)


@dataclass
class _Place:
    """Where in which copy of a file a reader is.

    Args:
        copy: "volume" or "logs".
        shift: what its offset there differs by.
        end: offset after the last bytes that were read.
        anchor: the last bytes that were read.
    """

    copy: str
    shift: int = 0
    end: int = 0
    anchor: bytes = b""


@dataclass
class PodRunStore:
    """The run folder `root` in the pods of a run.

    Args:
        cluster: where the run is.
        target: what it is.
        run: its name.
        root: the folder in its pods, absolute.
    """

    cluster: Cluster
    target: Target
    run: str
    root: Path
    _places: dict[str, _Place] = field(default_factory=dict, repr=False)

    def list(self, folder: str = "") -> list[str]:
        return self._either(
            lambda: self._volume.list(folder), lambda: below(self._kept.files(), folder)
        )

    def read(self, path: str) -> bytes:
        return self._either(lambda: self._volume.read(path), lambda: self._kept_file(path))

    def tail(self, path: str, offset: int) -> bytes:
        """The logs may lack what the volume has, and a pod may come or go between two calls: a
        reader goes on behind what it was given last."""
        for copy, read in (("volume", self._volume_tail), ("logs", self._kept_tail)):
            place = self._places.setdefault(path, _Place(copy))
            try:
                if place.copy != copy:
                    self._places[path] = place = _moved(place, copy, read(path, 0))
                data = read(path, offset + place.shift)
            except NoPod:
                continue
            place.end = offset + len(data)
            place.anchor = (place.anchor + data)[-ANCHOR_BYTES:]
            return data
        return b""

    def write(self, path: str, data: bytes) -> None:
        self._entered(lambda: self._volume.write(path, data))

    def files(self, folder: str) -> dict[str, FileFacts]:
        return self._entered(lambda: self._volume.files(folder))

    def ends(self, paths: Sequence[str], limit_bytes: int) -> Sequence[bytes]:
        def kept() -> list[bytes]:
            return [(self._kept.file(str(inside(p))) or b"")[-limit_bytes:] for p in paths]

        return self._either(lambda: list(self._volume.ends(paths, limit_bytes)), kept)

    def kinds(self, paths: Sequence[str]) -> Sequence[str]:
        def kept() -> list[str]:
            return [self._kept_kind(str(inside(path))) for path in paths]

        return self._either(lambda: list(self._volume.kinds(paths)), kept)

    def sha256(self, paths: Sequence[str]) -> Sequence[str]:
        return self._entered(lambda: self._volume.sha256(paths))

    def remove(self, folder: str) -> None:
        self._entered(lambda: self._volume.remove(folder))

    def merged_logs(self) -> RunLogs:
        """What all pods print."""
        return RunLogs(self.cluster, self.target, self.run)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """While this lasts there is a pod through which the volume is read and written: one of the
        run if one runs, else one for this alone. Raises BackendError if it does not start."""
        try:
            self._shell.shell("true")
        except NoPod:
            with reader_pod(self.cluster, self.target, self.run) as self._shell.reader:
                try:
                    yield
                finally:
                    self._shell.reader = ""
        else:
            yield

    @cached_property
    def _shell(self) -> PodShell:
        return PodShell(self.cluster, self.target, self.run)

    @cached_property
    def _volume(self) -> SshRunStore:
        return SshRunStore(self._shell, self.root)

    @cached_property
    def _kept(self) -> KeptLogs:
        return KeptLogs(self.cluster, self.target, self.run)

    def _volume_tail(self, path: str, offset: int) -> bytes:
        return self._volume.tail(path, offset)

    def _kept_tail(self, path: str, offset: int) -> bytes:
        data = self._kept.file(str(inside(path))) or b""
        return data[offset : offset + READ_LIMIT_BYTES]

    def _kept_file(self, path: str) -> bytes:
        data = self._kept.file(str(inside(path)))
        if data is None:
            raise BackendError(f"{self.root / path}: {self._out_of_reach('no pod runs')}")
        return data

    def _kept_kind(self, path: str) -> str:
        if self._kept.file(path) is not None:
            return FILE
        return FOLDER if below(self._kept.files(), path) else MISSING

    def _either(self, on_volume: Callable[[], T], from_logs: Callable[[], T]) -> T:
        try:
            return on_volume()
        except NoPod:
            return from_logs()

    def _entered(self, on_volume: Callable[[], T]) -> T:
        """What only the volume can answer. Raises BackendError with what to do instead."""
        try:
            return on_volume()
        except NoPod as error:
            raise BackendError(f"{self.root}: {self._out_of_reach(str(error))}") from None

    def _out_of_reach(self, why: str) -> str:
        place = volume_words(self._kept.pods(), PurePosixPath(self.root))
        return (
            f"{why}, and the folder lies on {place}, which is read through a running pod of the "
            "run. `orchestrate checkpoints RUN --reader-pod` starts one for itself."
        )


def _moved(place: _Place, copy: str, content: bytes) -> _Place:
    """The reader's place in another copy of the file: behind what it has read last there, or at
    the end where that is not found."""
    if not place.end:
        return _Place(copy)
    here = len(content)
    for anchor in (place.anchor, _last_line(place.anchor)):
        found = content.rfind(anchor) if anchor else -1
        if found >= 0:
            here = found + len(anchor)
            break
    return _Place(copy, here - place.end, place.end, place.anchor)


def _last_line(data: bytes) -> bytes:
    """The last whole line with what follows it: the logs may begin with it."""
    return data[data.rfind(b"\n", 0, max(0, data.rfind(b"\n"))) + 1 :]
