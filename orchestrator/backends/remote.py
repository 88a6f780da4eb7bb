"""A site behind ssh: commands and run folders of a login node, from a laptop.

Each call is one POSIX shell script there. Its parameters are set by `set --`, each quoted once;
the scripts themselves are fixed texts. GNU's dd writes: only it takes an exact number of bytes from
a pipe and syncs them. GNU's find and sha256sum end names with NUL.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePath
from typing import Protocol

from orchestrator.backends import runstore
from orchestrator.backends.runstore import FileFacts, RunStore
from orchestrator.backends.site import (
    COMMAND_MISSING,
    COMMAND_TIMEOUT_S,
    Completed,
    no_such_command,
)
from orchestrator.backends.ssh import Connection
from orchestrator.errors import BackendError

TRANSFER_TIMEOUT_S = 300.0
HASH_TIMEOUT_S = 6 * 3600.0  # a checkpoint of 1 TB at 50 MB/s; a dead connection is seen before

# FOLDER -> its names, each with a NUL after it.
LIST = r"""
[ -d "$1" ] || exit 0
cd "$1" || exit
for name in * .[!.]* ..?*; do
  if [ -e "$name" ] || [ -L "$name" ]; then printf '%s\0' "$name"; fi
done
"""
# FILE LIMIT
READ = """
if [ -e "$1" ] && [ ! -f "$1" ] && [ ! -d "$1" ]; then
  echo "$1: neither a file nor a folder" >&2
  exit 1
fi
head -c "$2" "$1"
"""
# FILE START LIMIT, where START counts from 1.
TAIL = """
[ -f "$1" ] || exit 0
{ tail -c "+$2" | head -c "$3"; } <"$1"
"""
# MARK LIMIT FILE... -> the end of each file, each with MARK after it.
ENDS = """
mark=$1 limit=$2
shift 2
for file do
  if [ -f "$file" ]; then tail -c "$limit" "$file" 2>/dev/null; fi
  printf %s "$mark"
done
"""
# FOLDER FILE... -> what each is, as RunStore.kinds says it; a line each.
KINDS = f"""
root=$(cd -P -- "$1" 2>/dev/null && pwd)
shift
for file do
  if [ ! -e "$file" ]; then
    if [ -L "$file" ]; then echo "{runstore.BROKEN}"; else echo "{runstore.MISSING}"; fi
    continue
  fi
  # Only a link is worth a program of its own.
  if [ -L "$file" ]; then real=$(readlink -f -- "$file")
  else real=$(cd -P -- "${{file%/*}}" 2>/dev/null && pwd)/; fi
  case $real in
    "$root" | "${{root%/}}"/*) ;;
    *) echo "{runstore.OUTSIDE}"; continue ;;
  esac
  if [ ! -f "$file" ] && [ ! -d "$file" ]; then echo "{runstore.OTHER}"
  elif [ ! -r "$file" ]; then echo "{runstore.REFUSED}"
  elif [ -f "$file" ]; then echo "{runstore.FILE}"
  else echo "{runstore.FOLDER}"; fi
done
"""
# FOLDER -> size, time and path of each file below it, each with a NUL after it.
FILES = r"""
[ -d "$1" ] || exit 0
exec find -H "$1" -ignore_readdir_race -type f -printf '%s %T@ %P\0'
"""
# FILE... -> the SHA-256 and the path of each, each with a NUL after it.
SHA256 = 'exec sha256sum -z -- "$@"'
# FOLDER
REMOVE = 'exec rm -rf -- "$1"'
# TAG (FILE SIZE)... and on standard input the content of one file after the other. A transfer
# that was cut off leaves the old content.
WRITE = """
tag=$1
shift
while [ $# -gt 0 ]; do
  folder=${1%/*}
  aside=$folder/.${1##*/}.$tag
  mkdir -p "$folder" || exit
  if [ -d "$1" ]; then echo "$1: is a folder" >&2; exit 1; fi
  trap 'rm -f "$aside"' EXIT
  dd of="$aside" bs=65536 iflag=fullblock,count_bytes count="$2" conv=fsync status=none || exit
  if [ "$(($(wc -c <"$aside")))" -ne "$2" ]; then echo "$1: cut off on its way" >&2; exit 1; fi
  mv -f "$aside" "$1" || exit
  shift 2
done
"""


class Shell(Protocol):
    """A POSIX shell elsewhere: of a host, or in a pod."""

    @property
    def label(self) -> str:
        """The place, as a message names it."""
        ...

    def shell(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        timeout_s: float = COMMAND_TIMEOUT_S,
        what: str = "a command",
    ) -> Completed:
        """Run a script to its end; any exit code of its own is returned."""
        ...


class SshSite:
    """A login node.

    Args:
        host: the login node as the user's ssh knows it.
        command: the ssh client and options that go first.

    Raises BackendError if `host` is no name of a host.
    """

    def __init__(self, host: str, command: Sequence[str] = ("ssh",)) -> None:
        self.connection = Connection(host, command)

    @property
    def label(self) -> str:
        return self.connection.label

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> Completed:
        script = f"exec {shlex.join(argv)}"
        done = self.connection.shell(script, stdin=stdin or b"", timeout_s=timeout_s, what=argv[0])
        if done.code == COMMAND_MISSING and "not found" in done.stderr:
            raise no_such_command(self.label, argv[0])
        return done

    def absolute(self, path: str) -> Path:
        if path.startswith("~") and path != "~" and not path.startswith("~/"):
            raise BackendError(f"{self.label}: {path}: write the folder of another user in full")
        if path.startswith("/"):
            return Path(path)
        return self.home / path.removeprefix("~").removeprefix("/")

    @cached_property
    def home(self) -> Path:
        """The user's home folder there."""
        return Path(decoded(checked(self.connection, 'cd && printf %s "$PWD"').raw))

    def store(self, root: PurePath) -> RunStore:
        return SshRunStore(self.connection, root)

    def put(self, files: Mapping[str, bytes], root: PurePath) -> None:
        SshRunStore(self.connection, root).write_all(files)

    def ends(self, paths: Sequence[PurePath], limit_bytes: int) -> list[bytes]:
        return _ends(self.connection, paths, limit_bytes)


class SshRunStore:
    """A run folder on another machine, or in a pod.

    Args:
        connection: the shell there.
        root: the folder, absolute there.
    """

    def __init__(self, connection: Shell, root: PurePath) -> None:
        if not root.is_absolute():
            raise BackendError(f"{connection.label}: {root}: a run folder's path is absolute")
        self.connection = connection
        self.root = root

    def list(self, folder: str = "") -> list[str]:
        done = checked(self.connection, LIST, self._path(folder))
        return sorted(decoded(name) for name in done.raw.split(b"\0")[:-1])

    def read(self, path: str) -> bytes:
        limit = runstore.READ_LIMIT_BYTES
        data = self._transfer(READ, self._path(path), limit + 1).raw
        if len(data) > limit:
            where = f"{self.connection.label}: {self._path(path)}"
            raise BackendError(f"{where}: larger than {limit} bytes; read it by tail")
        return data

    def tail(self, path: str, offset: int) -> bytes:
        limit = runstore.READ_LIMIT_BYTES
        return self._transfer(TAIL, self._path(path), offset + 1, limit).raw

    def write(self, path: str, data: bytes) -> None:
        self.write_all({path: data})

    def write_all(self, files: Mapping[str, bytes]) -> None:
        """Write files one after the other by one command, each at once."""
        pairs = [word for path, data in files.items() for word in (self._path(path), len(data))]
        tag = secrets.token_hex(4)
        self._transfer(WRITE, tag, *pairs, stdin=b"".join(files.values()))

    def files(self, folder: str) -> dict[str, FileFacts]:
        done = checked(self.connection, FILES, self._path(folder))
        rows = [row.split(b" ", 2) for row in done.raw.split(b"\0")[:-1]]
        return {decoded(name): FileFacts(int(size), float(time)) for size, time, name in rows}

    def ends(self, paths: Sequence[str], limit_bytes: int) -> Sequence[bytes]:
        return _ends(self.connection, [self._path(path) for path in paths], limit_bytes)

    def kinds(self, paths: Sequence[str]) -> Sequence[str]:
        where = [self._path(path) for path in paths]
        return decoded(checked(self.connection, KINDS, self.root, *where).raw).splitlines()

    def sha256(self, paths: Sequence[str]) -> Sequence[str]:
        where = [self._path(path) for path in paths]
        done = checked(self.connection, SHA256, *where, timeout_s=HASH_TIMEOUT_S)
        return [row[:64].decode("ascii") for row in done.raw.split(b"\0")[:-1]]

    def remove(self, folder: str) -> None:
        self._transfer(REMOVE, self._path(folder))

    def _transfer(self, script: str, *words: object, stdin: bytes = b"") -> Completed:
        return checked(self.connection, script, *words, stdin=stdin, timeout_s=TRANSFER_TIMEOUT_S)

    def _path(self, path: str) -> PurePath:
        return self.root / runstore.inside(path)


def _ends(connection: Shell, paths: Sequence[PurePath], limit_bytes: int) -> list[bytes]:
    mark = secrets.token_hex(8)
    done = checked(connection, ENDS, mark, limit_bytes, *paths)
    return done.raw.split(mark.encode())[:-1]


def checked(
    connection: Shell,
    script: str,
    *words: object,
    stdin: bytes = b"",
    timeout_s: float = COMMAND_TIMEOUT_S,
) -> Completed:
    """Run one of the scripts above with its parameters. Raises BackendError where it fails."""
    parameters = shlex.join(str(word) for word in words)
    # C: names are bytes, and messages are English.
    text = f"LC_ALL=C; export LC_ALL\nset -- {parameters}\n{script}"
    done = connection.shell(text, stdin=stdin, timeout_s=timeout_s)
    if done.code != 0:
        reason = done.stderr.strip() or f"the command left with {done.code}"
        raise BackendError(f"{connection.label}: {reason}")
    return done


def decoded(name: bytes) -> str:
    """A file's name as Python has it: what is no UTF-8 is kept, as `os.fsdecode` does."""
    return name.decode(errors="surrogateescape")
