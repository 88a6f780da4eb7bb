"""From what was rendered for some clusters to a kustomize base with an overlay for each.

The base is what the first cluster gets, without its namespace. An overlay says what is different:
namespace, common labels and annotations, image, the generated ConfigMap's files, and the rest as
JSON patches. A cluster with other kinds of objects has an overlay with files of its own.

Building an overlay gives the objects that `render` makes for the cluster, and nothing else.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from orchestrator.errors import UserError
from orchestrator.images import image_change, set_image
from orchestrator.json_patch import operations
from orchestrator.render import Rendered
from orchestrator.source import plain
from orchestrator.yaml_text import yaml_text

CONFIG_FILE = "config.yaml"
KUSTOMIZATION = "kustomization.yaml"
HEADER = (
    "# Made by `orchestrate render`: change the job file or the cluster profile and render again.\n"
)
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Tree = dict[str, Any]


class _Cluster(NamedTuple):
    """What a cluster gets: objects by file without their namespace, and the ConfigMap apart."""

    name: str
    target: str
    namespace: str | None
    texts: dict[str, str]
    objects: dict[str, Tree]
    config: Tree

    @property
    def all(self) -> list[Tree]:
        return [*self.objects.values(), self.config]


def kustomize(clusters: Sequence[tuple[str, Rendered]]) -> dict[str, str]:
    """Return the files by path: base/..., and overlays/CLUSTER/... for each cluster.

    Args:
        clusters: name of the cluster and what was rendered for it; the first one is the base.

    Raises:
        UserError: a cluster's name makes no folder.
    """
    first, *others = [_cluster(name, rendered) for name, rendered in clusters]
    files = _whole(first, "base", None)
    for cluster in (first, *others):
        folder = f"overlays/{cluster.name}"
        if _shares_base(first, cluster):
            files.update(_overlay(first, cluster, folder))
        else:
            files.update(_whole(cluster, folder, cluster.namespace))
    return dict(sorted(files.items()))


def _cluster(name: str, rendered: Rendered) -> _Cluster:
    if not _FOLDER.fullmatch(name):
        raise UserError(
            f"cluster {name!r}: its name becomes a folder of the overlays, and may have letters, "
            "digits, dots, _ and - only. Rename the profile."
        )
    texts = {file: text for file, text in rendered.files.items() if file.endswith(".yaml")}
    trees = {file: plain(text) for file, text in texts.items()}
    namespace = trees[CONFIG_FILE]["metadata"].get("namespace")
    for file, tree in trees.items():
        tree["metadata"].pop("namespace", None)
        texts[file] = _without_namespace(texts[file])
        if plain(texts[file]) != tree:
            raise ValueError(f"{file}: cannot tell the line of its namespace")
    config = trees.pop(CONFIG_FILE)
    return _Cluster(name, rendered.target, namespace, texts, trees, config)


def _without_namespace(text: str) -> str:
    return re.sub(r"^  namespace: .*\n", "", text, count=1, flags=re.MULTILINE)


def _whole(cluster: _Cluster, folder: str, namespace: str | None) -> dict[str, str]:
    """A folder that needs no other: each object's file, and the ConfigMap's contents."""
    files = {f"{folder}/{file}": HEADER + cluster.texts[file] for file in cluster.objects}
    generator = {
        "name": cluster.config["metadata"]["name"],
        "files": sorted(cluster.config["data"]),
        "options": _own_metadata(cluster),
    }
    content = {
        "namespace": namespace,
        "resources": sorted(cluster.objects),
        "configMapGenerator": [{k: v for k, v in generator.items() if v}],
        "labels": [{"pairs": _common(cluster, "labels")}],
        "commonAnnotations": _common(cluster, "annotations"),
    }
    files[f"{folder}/{KUSTOMIZATION}"] = _kustomization(content)
    return files | _data_files(cluster.config["data"], folder)


def _own_metadata(cluster: _Cluster) -> dict[str, dict[str, str]]:
    """The ConfigMap's labels and annotations that are not common to all objects."""
    metadata = cluster.config["metadata"]
    each = {
        kind: {k: v for k, v in metadata.get(kind, {}).items() if k not in _common(cluster, kind)}
        for kind in ("labels", "annotations")
    }
    return {kind: values for kind, values in each.items() if values}


def _data_files(data: dict[str, str], folder: str) -> dict[str, str]:
    return {f"{folder}/{key}": text for key, text in data.items()}


def _kustomization(content: Tree) -> str:
    """A kustomization.yaml without the keys that have nothing to say.

    The name of the generated ConfigMap gets no hash: pods find it by the run's name, and the hash
    over all that was rendered is an annotation of the pod template already.
    """
    head: Tree = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    if content["configMapGenerator"]:
        head["generatorOptions"] = {"disableNameSuffixHash": True}
    said = {key: value for key, value in content.items() if value and value != [{"pairs": {}}]}
    return HEADER + yaml_text(head | said)


def _shares_base(first: _Cluster, cluster: _Cluster) -> bool:
    """Whether patches can turn the base into what the cluster gets: they rename and delete
    nothing."""
    return all(
        file in cluster.objects and _identity(cluster.objects[file]) == _identity(tree)
        for file, tree in first.objects.items()
    )


def _identity(tree: Tree) -> tuple[str, str, str]:
    return tree["apiVersion"], tree["kind"], tree["metadata"]["name"]


def _overlay(first: _Cluster, cluster: _Cluster, folder: str) -> dict[str, str]:
    """A folder on top of the base."""
    more = sorted(cluster.objects.keys() - first.objects.keys())
    data = _changed_data(first, cluster)
    labels, annotations = (_news(first, cluster, kind) for kind in ("labels", "annotations"))
    image = image_change(first.all, cluster.all)
    content = {
        "namespace": cluster.namespace,
        "resources": ["../../base", *more],
        "configMapGenerator": _generator(first, cluster, data),
        "labels": [{"pairs": labels}],
        "commonAnnotations": annotations,
        "images": [image.entry] if image else [],
        "patches": list(_patches(first, cluster, {"labels": labels, "annotations": annotations})),
    }
    files = {f"{folder}/{file}": HEADER + cluster.texts[file] for file in more}
    files[f"{folder}/{KUSTOMIZATION}"] = _kustomization(content)
    return files | _data_files(data, folder)


def _changed_data(first: _Cluster, cluster: _Cluster) -> dict[str, str]:
    """The ConfigMap's contents that the overlay has to bring; all of them where it has fewer."""
    before, after = first.config["data"], cluster.config["data"]
    if before.keys() - after.keys():
        return dict(after)
    return {key: text for key, text in after.items() if before.get(key) != text}


def _generator(first: _Cluster, cluster: _Cluster, data: dict[str, str]) -> list[Tree]:
    if not data:
        return []
    fewer = first.config["data"].keys() - cluster.config["data"].keys()
    behavior = "replace" if fewer else "merge"
    name = cluster.config["metadata"]["name"]
    return [{"name": name, "behavior": behavior, "files": sorted(data)}]


def _common(cluster: _Cluster, kind: str) -> dict[str, str]:
    """The labels or annotations that all objects of the cluster have."""
    each = [tree["metadata"].get(kind, {}) for tree in cluster.all]
    return {k: v for k, v in sorted(each[0].items()) if all(one.get(k) == v for one in each)}


def _news(first: _Cluster, cluster: _Cluster, kind: str) -> dict[str, str]:
    """Those of them that an object of the base has not."""
    each = [tree["metadata"].get(kind, {}) for tree in first.all]
    common = _common(cluster, kind)
    return {k: v for k, v in common.items() if any(one.get(k) != v for one in each)}


def _patches(first: _Cluster, cluster: _Cluster, news: dict[str, dict[str, str]]) -> Iterator[Tree]:
    """What no other key of the overlay says, for each object of the base."""
    image = image_change(first.all, cluster.all)
    pairs = [(tree, cluster.objects[file]) for file, tree in first.objects.items()]
    for before, after in (*pairs, (_without_data(first.config), _without_data(cluster.config))):
        reached = copy.deepcopy(before)
        for kind, changes in news.items():
            reached["metadata"].setdefault(kind, {}).update(changes)
        if image is not None:
            set_image(reached, image.after)
        steps = list(operations(_tidy(reached), after))
        if steps:
            target = {"kind": after["kind"], "name": after["metadata"]["name"]}
            yield {"target": target, "patch": yaml_text(steps)}


def _without_data(config: Tree) -> Tree:
    return {key: value for key, value in config.items() if key != "data"}


def _tidy(tree: Tree) -> Tree:
    """The tree without empty labels or annotations."""
    tree["metadata"] = {key: value for key, value in tree["metadata"].items() if value != {}}
    return tree
