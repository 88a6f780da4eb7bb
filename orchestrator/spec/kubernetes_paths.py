"""Where things are mounted in a pod."""

from __future__ import annotations

import posixpath

# Where the launcher mounts something itself.
OWN_MOUNTS = {
    "/orchestrate": "the run's configuration",
    "/dev/shm": "kubernetes.shm_size",
    "/tmp": "a folder of the pod's own",
}


def normal_path(path: str) -> str:
    """Return an absolute path without what changes nothing: `/data//x/` is `/data/x`."""
    return posixpath.normpath("/" + path.lstrip("/"))


def hides(mount: str, other: str) -> bool:
    """Whether a volume at `mount` takes the place of what is at `other`; both normal."""
    return other == mount or other.startswith(mount.rstrip("/") + "/")


def collision(mount: str) -> str | None:
    """Return the folder of OWN_MOUNTS that a volume at `mount` would take the place of, or that
    leaves no room in it; None if there is none."""
    mount = normal_path(mount)
    # The configuration cannot be written to, so nothing can be mounted inside of it.
    found = (own for own in OWN_MOUNTS if hides(mount, own))
    return next(found, "/orchestrate" if hides("/orchestrate", mount) else None)
