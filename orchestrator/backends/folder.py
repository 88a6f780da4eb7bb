"""Run folders as backends make them and find them again, on the machine of a `Site`."""

from __future__ import annotations

import fcntl
import io
import json
import os
import socket
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator import __version__, contract
from orchestrator.backends.base import Handle, RenderedFiles
from orchestrator.backends.site import Site
from orchestrator.errors import BackendError, UserError

LOCK_TIMEOUT_S = 20.0
POLL_S = 0.05
# How much of a run's small files, and of the end of its metrics, is read.
TAIL_BYTES = 65536


def place(site: Site, runs_root: Path, name: str) -> Path:
    """The folder of the run `name`, absolute. Raises UserError if that is not one folder's name."""
    if name in ("", ".", "..") or "/" in name or "\0" in name or name.startswith("."):
        raise UserError(f"name {name!r}: it names a folder under {runs_root}, so it has no '/'")
    return site.absolute(str(runs_root)) / name


@contextmanager
def locked(
    run_dir: Path, is_running: Callable[[], bool], timeout_s: float = LOCK_TIMEOUT_S
) -> Iterator[int | None]:
    """The lock of a run on this machine, as a file descriptor; None if whoever has it runs the run.

    It lies beside the run folder, since --fresh renames that. Whoever inherits the descriptor
    keeps the lock.

    Args:
        is_running: whether the holder is no submit, which is waited for, but the run itself.
        timeout_s: how long another submit is waited for.

    Raises BackendError if it cannot be had.
    """
    path = run_dir.with_name(f".{run_dir.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise BackendError(f"{path}: cannot make it: {error.strerror}") from None
    try:
        yield descriptor if _take(descriptor, run_dir, is_running, timeout_s) else None
    finally:
        os.close(descriptor)


def _take(descriptor: int, run_dir: Path, is_running: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if is_running():
                return False
        if time.monotonic() > deadline:
            text = f"locked for {timeout_s:g} s, by another submit or from another machine"
            raise BackendError(f"{run_dir}: {text}; try again, or cancel the run there")
        time.sleep(POLL_S)


def put_aside(site: Site, run_dir: Path) -> Path | None:
    """Rename the run folder to a free name and return that; None if there is none to rename."""
    taken = set(site.store(run_dir.parent).list())
    if run_dir.name not in taken:
        return None
    number = next(n for n in range(1, len(taken) + 2) if f"{run_dir.name}.old-{n}" not in taken)
    kept = run_dir.with_name(f"{run_dir.name}.old-{number}")
    checked(site, "mv", "-nT", "--", str(run_dir), str(kept))
    return kept


def write(
    site: Site,
    run_dir: Path,
    rendered: RenderedFiles,
    job_text: str,
    more: Mapping[str, bytes] | None = None,
) -> None:
    """Write what was rendered, the job file and `more`; no rendered file of an earlier submit
    stays. The receipt is not yet written."""
    checked(site, "rm", "-rf", "--", str(run_dir / contract.RENDERED_DIR))
    files = {f"{contract.RENDERED_DIR}/{n}": t.encode() for n, t in rendered.files.items()}
    site.put({**files, contract.JOB_FILE: job_text.encode(), **(more or {})}, run_dir)


def write_receipt(site: Site, handle: Handle, workdir: Path, files: Iterable[str]) -> None:
    """Write the receipt: with it the folder is a run. `files`: the names of its rendered files."""
    site.put({contract.RECEIPT_FILE: receipt_of(handle, workdir, files)}, handle.run_dir)


def receipt_of(handle: Handle, workdir: Path, files: Iterable[str]) -> bytes:
    """What write_receipt writes."""
    receipt = {
        "version": 1,
        "name": handle.run,
        "is_element": "/" in handle.run,
        "num_elements": handle.num_elements,
        "backend": handle.backend,
        "run_dir": str(handle.run_dir),
        "workdir": str(workdir),
        "ids": dict(handle.ids),
        "host": socket.gethostname(),
        "tool_version": __version__,
        "submitted_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "files": sorted(files),
    }
    return f"{json.dumps(receipt, indent=1)}\n".encode()


def handle_of(run_dir: Path, receipt: bytes, backend: str) -> Handle | None:
    """The handle that a receipt gives; None if it is no receipt of this backend."""
    content = parsed(receipt)
    if content.get("backend") != backend:
        return None
    ids = content.get("ids")
    known = {str(k): str(v) for k, v in ids.items()} if isinstance(ids, dict) else {}
    sweep = f"{run_dir.parent.name}/" if content.get("is_element") is True else ""
    count = content.get("num_elements")
    num_elements = count if isinstance(count, int) else 0
    return Handle(backend, sweep + run_dir.name, run_dir, known, num_elements)


def owned(site: Site, run_dir: Path, backend: str) -> Handle | None:
    """The handle of a run folder; None if there is no receipt.

    Raises BackendError if another backend has the run.
    """
    (receipt,) = site.ends([run_dir / contract.RECEIPT_FILE], TAIL_BYTES)
    handle = handle_of(run_dir, receipt, backend)
    if receipt and handle is None:
        other = parsed(receipt).get("backend")
        raise BackendError(
            f"{run_dir} is a run of the backend {other!r}, not {backend!r}: choose the cluster on "
            "which it was started, or another name"
        )
    return handle


def find(site: Site, runs_root: Path, backend: str) -> list[Handle]:
    """All runs of a backend under a folder, by name; none if there is no such folder."""
    root = site.absolute(str(runs_root))
    folders = [root / name for name in site.store(root).list() if not name.startswith(".")]
    receipts = site.ends([folder / contract.RECEIPT_FILE for folder in folders], TAIL_BYTES)
    pairs = zip(folders, receipts, strict=True)
    found = (handle_of(folder, receipt, backend) for folder, receipt in pairs)
    return [handle for handle in found if handle is not None]


def unpack(
    site: Site,
    root: Path,
    files: Mapping[str, bytes],
    *,
    folders: Sequence[str] = (),
    links: Mapping[str, str] | None = None,
) -> None:
    """Write many small files by one command. Not one by one at once and synced, as `put` does: that
    takes some milliseconds for each.

    Args:
        files: content by path below `root`; folders are made.
        folders: more folders, which may be there.
        links: what symbolic links say, by path.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, data in files.items():
            tar.addfile(_member(path, size=len(data)), io.BytesIO(data))
        for path in folders:
            tar.addfile(_member(path, type=tarfile.DIRTYPE, mode=0o777))
        for path, target in (links or {}).items():
            tar.addfile(_member(path, type=tarfile.SYMTYPE, linkname=target))
    # -m: the time of now. --no-same-*: the umask of that machine holds, also for root.
    options = ("-xmf", "-", "--no-same-owner", "--no-same-permissions")
    checked(site, "tar", *options, "-C", str(root), stdin=packed.getvalue())


def _member(path: str, **fields: Any) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.mode = 0o666
    for name, value in fields.items():
        setattr(member, name, value)
    return member


def checked(site: Site, *argv: str, stdin: bytes | None = None) -> None:
    """Run a command of the file system. Raises BackendError with its words where it fails."""
    done = site.run(argv, stdin=stdin)
    if done.code != 0:
        raise BackendError(f"{site.label}: {done.stderr.strip() or f'{argv[0]}: {done.code}'}")


def parsed(data: bytes) -> dict[str, Any]:
    """The object in a small JSON file; empty if there is none that can be read."""
    try:
        content = json.loads(data)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def step_of(metrics: bytes) -> int | None:
    """The newest optimizer step in the end of metrics.jsonl; None if there is none."""
    for line in reversed(metrics.splitlines()):
        # A line may be cut off at the front, or still being written.
        step = parsed(line).get("step")
        if isinstance(step, int):
            return step
    return None


def steps_of(trainer: bytes) -> int | None:
    """The number of optimizer steps that a trainer.json asks for; None if it does not say."""
    steps = parsed(trainer).get("steps")
    return steps if isinstance(steps, int) else None
