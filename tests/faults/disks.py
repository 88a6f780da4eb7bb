"""Disks that fail in the middle of a run, and are mended later: small tmpfs, as root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from runs import Run

SIZE = "16m"  # a few checkpoints
LEFT_BYTES = 100_000  # on the full disk: less than a checkpoint, so that its writing fails midway
FILLER = "filler"


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of its own below `folder` while the block runs."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def fill(folder: Path) -> None:
    with (folder / FILLER).open("wb") as file:
        file.write(bytes(shutil.disk_usage(folder).free - LEFT_BYTES))


def fill_up(folder: Path) -> None:
    """To the last block: metrics are cut in the middle of a line."""
    with (folder / FILLER).open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def empty(folder: Path) -> None:
    (folder / FILLER).unlink()


def forbid_writing(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)


def allow_writing(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,rw", folder], check=True)


def take_away(folder: Path) -> None:
    folder.rename(folder.with_name("away"))


def bring_back(folder: Path) -> None:
    folder.with_name("away").rename(folder)


Act = Callable[[Path], None]
WHOLE_RUN = {"full": (fill_up, empty), "read-only": (forbid_writing, allow_writing)}
FAULTS: dict[str, tuple[Act, Act, str]] = {
    "full": (fill, empty, "No space left on device"),
    "read-only": (forbid_writing, allow_writing, "Read-only file system"),
    "vanished": (take_away, bring_back, "No such file or directory"),
}
"""What breaks the folder, what mends it, and what the system says meanwhile."""


class Between:
    """A listener for Run.start by which rank 0 acts on a folder before given steps."""

    def __init__(self, folder: Path, acts: dict[int, Act]) -> None:
        self.folder = folder
        self.acts = acts

    def __call__(self, _run: Run, name: str, step: int) -> None:
        act = self.acts.get(step)
        if name == "step" and act is not None and os.environ["RANK"] == "0":
            for thread in threading.enumerate():
                if thread.name.startswith("checkpoint-"):  # of a save that is still on its way
                    thread.join()
            act(self.folder)
