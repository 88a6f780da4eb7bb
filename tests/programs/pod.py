"""Becomes the container of a pod: pod.py SPEC, in pid, mount and uts namespaces of its own.

SPEC is JSON: root (an empty folder), read_only (whether that is), hostname, hosts (a file), mounts
([path, source, read_only], parents first), workdir, argv, env. The container sees this machine's
files and, at new places, the pod's volumes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any


def main(spec: dict[str, Any]) -> None:
    root = Path(spec["root"])
    build(root, spec["read_only"])
    for path, source, read_only in spec["mounts"]:
        bind(root, path, source, read_only)
    socket.sethostname(spec["hostname"])
    mount("--bind", spec["hosts"], str(root / "etc/hosts"))
    os.chroot(root)
    os.makedirs(spec["workdir"], exist_ok=True)
    os.chdir(spec["workdir"])
    env = spec["env"]
    os.environ.update(PATH=env["PATH"])
    os.execvpe(spec["argv"][0], spec["argv"], env)


def build(root: Path, read_only: bool) -> None:
    """A root of its own, so that mount points can be made without touching the machine's."""
    mount("-t", "tmpfs", "none", str(root))
    for entry in os.scandir("/"):
        there = root / entry.name
        if entry.is_symlink():
            there.symlink_to(os.readlink(entry.path))
        elif entry.is_dir():
            there.mkdir()
            if entry.name != "proc":
                bind(root, entry.path, entry.path, read_only)
    mount("-t", "proc", "proc", str(root / "proc"))


def bind(root: Path, path: str, source: str, read_only: bool) -> None:
    there = root / path.lstrip("/")
    there.mkdir(parents=True, exist_ok=True)
    mount("--rbind", source, str(there))
    if read_only:
        mount("-o", "remount,bind,ro", str(there))


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
