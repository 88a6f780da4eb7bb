"""A run folder as the logs of its pods tell it, for when none of them can be entered.

A pod prints what its ranks print, each line behind its rank, and those of rank 0 have all lines of
metrics.jsonl: `watch`, `logs` and `status` need no more. A pod lives for one attempt at most.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from orchestrator import contract
from orchestrator.backends.kubernetes_client import Cluster
from orchestrator.backends.kubernetes_kinds import CONFIG_MAP, POD, RUN_LABEL, Object, Target
from orchestrator.backends.kubernetes_pods import PodFacts, pod_facts
from orchestrator.backends.kubernetes_said import BEGUN, ENDED, metrics_lines
from orchestrator.backends.runstore import READ_LIMIT_BYTES, inside
from orchestrator.errors import BackendError

# So old may be what was read, and so much is read at once.
FRESH_S = 2.0
ALL_BYTES = 256 * 1024 * 1024
RANK = re.compile(rb"\[rank (\d+) [^\]\s]*\] ?")


@dataclass
class KeptLogs:
    """The files of a run that can be told from the logs of its pods and from its ConfigMap.

    Args:
        cluster: where the run is.
        target: what it is.
        run: its name.
    """

    cluster: Cluster
    target: Target
    run: str
    _ended: dict[str, bytes] = field(default_factory=dict, repr=False)  # logs that stay, by uid
    _files: dict[str, bytes] = field(default_factory=dict, repr=False)
    _good_until: float = field(default=0.0, repr=False)

    def file(self, path: str) -> bytes | None:
        """The content of a file of the run folder; None if there is none, or nobody tells it.

        Raises BackendError if the API server gives no answer.
        """
        if path.startswith(f"{contract.RENDERED_DIR}/"):
            return self._rendered().get(path)
        if path == contract.METRICS_FILE:
            heads = [pod for pod in self.pods() if self.target.node_rank(pod) == 0]
            return rebuilt(self._rows(heads)).get(path)
        return self.files().get(path)

    def files(self) -> dict[str, bytes]:
        """All contents by path in the run folder; they may be a few seconds old.

        Raises BackendError if the API server gives no answer.
        """
        begun = time.monotonic()
        if begun >= self._good_until:
            self._files = {**rebuilt(self._rows(self.pods())), **self._rendered()}
            spent_s = time.monotonic() - begun
            self._good_until = time.monotonic() + max(FRESH_S, spent_s)
        return self._files

    def pods(self) -> list[Object]:
        """All pods of the run that are still there."""
        return list(self.cluster.objects(POD, f"{RUN_LABEL}={self.run}"))

    def _rows(self, pods: Sequence[Object]) -> list[tuple[PodFacts, bytes]]:
        """Facts and logs, the oldest pod first."""
        limit_bytes = min(READ_LIMIT_BYTES, ALL_BYTES // max(1, len(pods)))
        rows = ((pod_facts(self.target, pod), self._log(pod, limit_bytes)) for pod in pods)
        return sorted(rows, key=lambda row: (row[0].created, row[0].node or 0))

    def _log(self, pod: Object, limit_bytes: int) -> bytes:
        """What a pod has printed; empty where that cannot be read (yet)."""
        metadata = pod["metadata"]
        uid, name = str(metadata.get("uid", "")), str(metadata["name"])
        if uid in self._ended:
            return self._ended[uid]
        path = f"{POD.path(self.cluster.namespace, name)}/log"
        query = [("container", self.target.container), ("limitBytes", str(limit_bytes))]
        asked = self.cluster.asked("get", POD, f"{name} (log)")
        try:
            log = b"".join(line + b"\n" for line in self.cluster.lines(asked, path, query))
        except BackendError:  # it has not started, or its node is away
            return b""
        if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            self._ended[uid] = log
        return log

    def _rendered(self) -> dict[str, bytes]:
        """What the run's ConfigMap holds."""
        found = self.cluster.find(CONFIG_MAP, self.run) or {}
        data = found.get("data") or {}
        return {f"{contract.RENDERED_DIR}/{name}": text.encode() for name, text in data.items()}


def rebuilt(rows: Sequence[tuple[PodFacts, bytes]]) -> dict[str, bytes]:
    """The files that the logs of pods tell, by path in the run folder.

    Args:
        rows: pods and what they have printed, the oldest first.
    """
    heads = [(pod, number_of(log) or 0) for pod, log in rows if pod.node == 0]
    files: dict[str, list[bytes]] = defaultdict(list)
    for pod, log in rows:
        lines = log.removesuffix(b"\n").split(b"\n")  # a rank's own \r stays
        attempt = number_of(log) or _attempt_of(pod, heads)
        if pod.node == 0:
            files[contract.METRICS_FILE] += metrics_lines(lines)
            files[f"{contract.ATTEMPTS_DIR}/{attempt}/{contract.END_FILE}"] += _end(lines)
        for rank, text in _ranks(lines):
            folder = f"{contract.ATTEMPTS_DIR}/{attempt}/{contract.LOGS_DIR}"
            files[f"{folder}/rank-{rank:05}.log"].append(text)
    return {
        path: b"".join(line + b"\n" for line in found) for path, found in files.items() if found
    }


def number_of(log: bytes) -> int | None:
    """The attempt that a log of node 0 tells of; None if it tells of none."""
    found = [match for line in log.splitlines() if (match := BEGUN.match(line))]
    return int(found[-1][1]) if found else None


def _attempt_of(pod: PodFacts, heads: Iterable[tuple[PodFacts, int]]) -> int:
    """The attempt of a pod: that of the newest pod of node 0 which was there before it ended."""
    until = pod.finished or "9"
    return next((number for head, number in reversed(list(heads)) if head.created <= until), 0)


def _end(lines: Iterable[bytes]) -> list[bytes]:
    """end.json, as far as the log tells it."""
    found = [match for line in lines if (match := ENDED.match(line))]
    words = [(int(match[2]), match[3].decode(errors="replace")) for match in found[-1:]]
    return [json.dumps({"version": 1, "code": c, "reason": r}).encode() for c, r in words]


def _ranks(lines: Iterable[bytes]) -> Iterable[tuple[int, bytes]]:
    """Rank and text of each line that a rank has printed."""
    for line in lines:
        if match := RANK.match(line):
            yield int(match[1]), line[match.end() :]


def below(files: Iterable[str], folder: str) -> list[str]:
    """Names in a folder, sorted, of files that are given by path."""
    parts = inside(folder).parts
    split = (tuple(path.split("/")) for path in files)
    return sorted({path[len(parts)] for path in split if path[: len(parts)] == parts and
                   len(path) > len(parts)})  # fmt: skip


def volume_words(pods: Iterable[Object], root: PurePosixPath) -> str:
    """Where the folder `root` of the pods lies, as a message says it."""
    for pod in pods:
        spec = pod.get("spec", {})
        mounts = [m for c in spec.get("containers") or () for m in c.get("volumeMounts") or ()]
        paths = {str(m.get("mountPath")): m.get("name") for m in mounts}
        name = next((paths[str(p)] for p in (root, *root.parents) if str(p) in paths), None)
        for volume in spec.get("volumes") or ():
            if volume.get("name") == name and name is not None:
                claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
                return f"the claim {claim}" if claim else f"the pods' volume {name}"
    return "a volume of the cluster (kubernetes.runs of the profile)"
