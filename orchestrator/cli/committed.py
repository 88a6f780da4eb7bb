"""What `render` writes into a folder, and how a folder differs from it."""

from __future__ import annotations

import difflib
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator.cli.common import Loaded, say, say_data, shell_path
from orchestrator.cli.rendering import is_kubernetes
from orchestrator.errors import UserError
from orchestrator.kustomize import HEADER, KUSTOMIZATION, kustomize
from orchestrator.render import Rendered
from orchestrator.source import plain

# What is in them is applied, so that nothing else may be there.
APPLIED = ("base", "overlays")


class Change(NamedTuple):
    """A file that is not as it would be rendered: `missing`, `extra` or `different`."""

    path: str
    state: str
    diff: str


def files_of(each: Sequence[tuple[Loaded, Rendered]]) -> dict[str, str]:
    """What belongs into a folder, by path: a kustomize base and overlays for Kubernetes, the
    rendered files themselves for others."""
    first = each[0][1]
    if not is_kubernetes(first):
        return first.files
    return kustomize([(loaded.profile.name, rendered) for loaded, rendered in each])


def write(folder: Path, files: dict[str, str]) -> None:
    """Write the files into the folder, and remove those that an earlier render has left there.

    Raises UserError where that would overwrite a file of somebody else's, or cannot be done.
    """
    try:
        ours = _ours(folder) if is_layout(files) else set()
        _check_no_stranger(folder, files, ours)
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(text.encode())
        for path in sorted(ours - files.keys()):
            _remove(folder / path)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write ({error.strerror}). Give -o a folder that you may write to."
        ) from None


def is_layout(files: dict[str, str]) -> bool:
    """Whether these are kustomize's: they lie in folders of their own, so that what an earlier
    render has left can be told."""
    return any("/" in path for path in files)


def _check_no_stranger(folder: Path, files: dict[str, str], ours: set[str]) -> None:
    """Kustomize's files lie among those that people write. Files of other targets are replaced."""
    in_layout = [path for path in files if "/" in path and path not in ours]
    strangers = [p for p in in_layout if (folder / p).exists() and _read(folder / p) != files[p]]
    if strangers:
        raise UserError(
            f"{folder}: {', '.join(strangers)}: not written by `orchestrate render`, and not "
            "overwritten. Move what is there, or give -o another folder."
        )


def _ours(folder: Path) -> set[str]:
    """The paths of what a render has written there: folders whose kustomization.yaml has the
    header, and in them files that have it too or are the ConfigMap's contents."""
    marks = [folder / "base" / KUSTOMIZATION, *folder.glob(f"overlays/*/{KUSTOMIZATION}")]
    found = [path for mark in marks if _has_header(mark) for path in _ours_beside(mark)]
    return {path.relative_to(folder).as_posix() for path in found}


def _ours_beside(mark: Path) -> Iterator[Path]:
    """What belongs to a kustomization.yaml of ours. The ConfigMap's contents, which cannot carry
    the header, do where it names them."""
    data = _data_files(mark)
    for path in mark.parent.iterdir():
        if path.name in data or (path.suffix == ".yaml" and _has_header(path)):
            yield path


def _data_files(mark: Path) -> set[str]:
    try:
        generators = plain(_read(mark)).get("configMapGenerator", [])
        return {name for generator in generators for name in generator["files"]}
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ):  # changed by somebody: it names none
        return set()


def _has_header(path: Path) -> bool:
    return path.is_file() and _read(path).startswith(HEADER)


def _remove(path: Path) -> None:
    path.unlink()
    if not any(path.parent.iterdir()):
        path.parent.rmdir()


def _read(path: Path) -> str:
    return path.read_bytes().decode(errors="backslashreplace")


def changes(folder: Path, files: dict[str, str]) -> list[Change]:
    """Return how the folder differs from what it should hold, by path. Whatever else is in its
    base and overlays is extra; files elsewhere in it are the user's.

    Raises UserError if there is no such folder.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; `orchestrate render JOB.YAML -o DIR` makes one")
    return list(_changes(folder, files))


def _changes(folder: Path, files: dict[str, str]) -> Iterator[Change]:
    for path in sorted(files.keys() | set(_applied(folder))):
        before = _text_at(folder / path)
        after = files.get(path)
        if before != after:
            state = "missing" if before is None else "extra" if after is None else "different"
            yield Change(path, state, unified_diff(str(folder / path), before, after))


def _applied(folder: Path) -> Iterator[str]:
    """The paths of all files below base and overlays, whoever wrote them, and of links, which lead
    to files elsewhere."""
    for top in APPLIED:
        if (folder / top).is_symlink():
            yield top
        for where, folders, names in os.walk(folder / top):
            links = [name for name in folders if (Path(where) / name).is_symlink()]
            for name in (*names, *links):
                yield (Path(where) / name).relative_to(folder).as_posix()


def _text_at(path: Path) -> str | None:
    """What is there; None for nothing. A link is never what would be written."""
    if path.is_symlink():
        return f"link to {os.readlink(path)}\n"
    return _read(path) if path.is_file() else None


def unified_diff(name: str, before: str | None, after: str | None) -> str:
    """Return the difference of two texts as a patch; None is no text at all."""
    # A file's lines end at \n alone, unlike those of str.splitlines.
    old, new = (list(io.StringIO(text or "", newline="\n")) for text in (before, after))
    old_name, new_name = ("/dev/null" if text is None else name for text in (before, after))
    lines = difflib.unified_diff(old, new, old_name, new_name)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline\n" for line in lines)


def say_changes(found: Sequence[Change], job: Path, folder: Path) -> None:
    """Print the differences as one patch, and in one line what there is."""
    say_data("".join(change.diff for change in found))
    if not found:
        say(f"{folder}: as it would be rendered")
        return
    words = ", ".join(f"{change.path} {change.state}" for change in found)
    say(
        f"{folder}: not as it would be rendered: {words}. To write it anew, with the same options: "
        f"orchestrate render {shell_path(job)} -o {shell_path(folder)}. Of what is extra that "
        "removes its own files; move others out of base and overlays.",
        err=True,
    )
