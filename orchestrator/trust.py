"""The user's configuration folder, and the list in it of cluster files that are trusted."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.source import read_bytes


def config_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the user's configuration folder of this tool, which need not exist; None without HOME.

    XDG Base Directory Specification: a relative XDG_CONFIG_HOME is to be ignored.
    """
    base = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        home = environ.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".config")
    return Path(base) / "orchestrate"


def _trusted_file(environ: Mapping[str, str]) -> Path | None:
    folder = config_folder(environ)
    return folder / "trusted" if folder is not None else None


def trust_state(path: Path, raw: bytes, environ: Mapping[str, str]) -> str:
    """Return `trusted`, `changed` or `unknown`, judged by path and content.

    Args:
        path: the file.
        raw: what is in it.
        environ: XDG_CONFIG_HOME and HOME are read.
    """
    listed = list(_trusted_digests(path, environ))
    if hashlib.sha256(raw).hexdigest() in listed:
        return "trusted"
    return "changed" if listed else "unknown"


def _trusted_digests(path: Path, environ: Mapping[str, str]) -> Iterator[str]:
    trusted = _trusted_file(environ)
    if trusted is None or not trusted.is_file():
        return
    for line in trusted.read_text("utf-8", errors="surrogateescape").splitlines():
        digest, _, name = line.partition("  ")
        if name == str(path.resolve()):
            yield digest


def trust(path: str | Path, environ: Mapping[str, str]) -> Path:
    """Trust a clusters file as it is now; once changed it is not trusted any more.

    Args:
        path: the file.
        environ: XDG_CONFIG_HOME and HOME are read.

    Returns:
        The list of trusted files, to which it was added.

    Raises:
        UserError: it cannot be read, or there is no place for the list.
    """
    trusted, resolved = _trusted_file(environ), Path(path).resolve()
    if trusted is None:
        raise UserError("neither HOME nor XDG_CONFIG_HOME is set, so nothing can be trusted")
    if "\n" in str(resolved):
        raise UserError(f"{str(resolved)!r}: a path with a line break cannot be trusted; rename it")
    digest = hashlib.sha256(read_bytes(path)).hexdigest()
    try:
        trusted.parent.mkdir(parents=True, exist_ok=True)
        with trusted.open("a", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(f"{digest}  {resolved}\n")
    except OSError as error:
        raise UserError(
            f"{trusted}: cannot write ({error.strerror}). Set XDG_CONFIG_HOME to a folder that you "
            "may write to, or name the file with --clusters"
        ) from None
    return trusted
