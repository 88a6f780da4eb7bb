"""The image in Kubernetes objects, and how kustomize writes another one over it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

Tree = dict[str, Any]


class ImageChange(NamedTuple):
    """An entry of a kustomization's `images`, and the image that it leads to."""

    entry: dict[str, str]
    after: str


def image_change(before: Sequence[Tree], after: Sequence[Tree]) -> ImageChange | None:
    """Return what turns the one image of some objects into that of others; None where they have
    the same, several, or one that an entry cannot name: with no tag, or with a tag and a digest."""
    old, new = _images(before), _images(after)
    if old == new or len(old) != 1 or len(new) != 1:
        return None
    (image,) = new
    name, tag, digest = split_image(image)
    if bool(tag) == bool(digest):
        return None
    entry = {"name": split_image(*old)[0], "newName": name}
    return ImageChange(entry | ({"newTag": tag} if tag else {"digest": digest}), image)


def set_image(tree: Tree, image: str) -> None:
    """Give all containers of an object the image."""
    for container in _containers(tree):
        container["image"] = image


def split_image(image: str) -> tuple[str, str, str]:
    """Return name, tag and digest of a reference; a colon before the last slash is a port."""
    rest, _, digest = image.partition("@")
    path, slash, last = rest.rpartition("/")
    last, _, tag = last.partition(":")
    return path + slash + last, tag, digest


def _images(trees: Sequence[Tree]) -> set[str]:
    return {c["image"] for tree in trees for c in _containers(tree) if "image" in c}


def _containers(tree: Any) -> Iterator[Tree]:
    """Each container in an object of any kind."""
    if isinstance(tree, list):
        for item in tree:
            yield from _containers(item)
    elif isinstance(tree, dict):
        for key, value in tree.items():
            if key == "containers" and isinstance(value, list):
                yield from value
            else:
                yield from _containers(value)
