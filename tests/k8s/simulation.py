"""Pods as processes of this machine: in one network of their own, each with a process table,
mounts and a host name of its own, started again as their controller would.

No container runtime: a pod sees this machine's programs, and its volumes where the manifest says.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k8s.controllers import Controller, Do, controller_of
from k8s.network import Network, in_own_table
from k8s.pods import Pod, pods_of
from orchestrator.backends.processes import Process, descendants, find
from running import PROGRAMS, wait_until

Object = dict[str, Any]
Mount = tuple[str, str, bool]  # path in the pod, folder of this machine, whether it is read-only
ROOT = Path(__file__).resolve().parents[2]
END_S = 120.0  # for pods that were told to end
# What the image has, as far as a pod's environment is concerned (k8s/image/Dockerfile).
IMAGE_ENV = {"PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp"}


def own_hosts(pod: Pod, address: str) -> str:
    """What the kubelet writes into a pod's /etc/hosts."""
    return f"127.0.0.1 localhost\n{address} {pod.hostname}\n"


def is_read_only(container: Object) -> bool:
    return bool(container.get("securityContext", {}).get("readOnlyRootFilesystem"))


def with_programs(mounts: list[Mount]) -> list[Mount]:
    """The mounts, and this Python where one of them would hide it: in a pod it is the image's."""
    programs = {sys.prefix, sys.base_prefix, *(p for p in sys.path if os.path.isdir(p)), str(ROOT)}
    hidden = {p for p in programs for path, *_ in mounts if Path(p).is_relative_to(path)}
    return sorted(mounts) + [(program, program, True) for program in sorted(hidden)]


@dataclass
class Running:
    """A pod that has been started.

    Args:
        log: what its container prints.
        code: of its container, once it has ended.
    """

    node: int
    pod: Pod
    address: str
    log: Path
    process: subprocess.Popen[bytes]
    code: int | None = None
    killed: bool = False

    def init(self) -> Process | None:
        """The container's first process, None before it is there and after its end."""
        below = descendants(self.process.pid)
        return next((p for p in below if in_own_table(p.pid) == 1), None)

    def command(self) -> list[str]:
        """What the container's first process was started with, [] before and after."""
        init = self.init()
        path = Path(f"/proc/{init.pid}/cmdline") if init else None
        return path.read_text().split("\0") if path and path.exists() else []

    def enter(self) -> list[str]:
        """Begins a command in the container, as `exec` does."""
        init = self.init()
        assert init is not None, f"{self.pod.hostname} has ended"
        user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        env = IMAGE_ENV | self.pod.own_env(self.address)
        words = [f"{name}={value}" for name, value in env.items()]
        return [
            "nsenter",
            "-t",
            str(init.pid),
            *user,
            *("-n", "-m", "-p", "-u", "-r", "-w"),
            "env",
            "-i",
            *words,
        ]

    def send(self, number: int) -> None:
        """Send a signal to the container's first process, as the kubelet does."""
        wait_until(lambda: self.process.poll() is not None or self.init(), "the pod's start")
        if init := self.init():
            init.send(number)
            self.killed = self.killed or number == signal.SIGKILL


@dataclass
class Cluster:
    """Runs the pods of one object until it is complete or has failed.

    Args:
        objects: the rendered objects by kind.
        folder: for what the pods leave here.
        claims: the folder behind each PersistentVolumeClaim.
        config_maps: those of the namespace, by name.
    """

    objects: Mapping[str, Object]
    folder: Path
    network: Network
    claims: Mapping[str, Path]
    config_maps: Mapping[str, Object] = field(default_factory=dict)
    state: Do = Do.NOTHING
    live: dict[int, Running] = field(default_factory=dict)
    history: list[Running] = field(default_factory=list)  # all pods, as they were made
    codes: list[int] = field(default_factory=list)  # exit codes, as they ended
    ending: set[int] = field(default_factory=set)  # nodes whose end is the controller's own wish
    start_all: bool = False

    def __post_init__(self) -> None:
        self.pods = pods_of(self.objects)
        self.controller: Controller = controller_of(self.objects)
        self.folder.mkdir(parents=True, exist_ok=True)

    def start(self, *nodes: int) -> None:
        """Make these nodes' pods, each at an address that no pod has had."""
        for node in nodes or range(len(self.pods)):
            address = self.network.free.pop(0)
            log = self.folder / f"{len(self.history)}-{self.pods[node].hostname}.log"
            process = self._spawn(self.pods[node], address, log)
            self.live[node] = Running(node, self.pods[node], address, log, process)
            self.history.append(self.live[node])
        self._publish()

    def _spawn(self, pod: Pod, address: str, log: Path) -> subprocess.Popen[bytes]:
        place = self.folder / address
        for name in ("root", "volumes"):
            (place / name).mkdir(parents=True)
        (place / "hosts").write_text(own_hosts(pod, address))
        spec = {
            "root": str(place / "root"),
            "hostname": pod.hostname,
            "hosts": str(place / "hosts"),
            "read_only": os.geteuid() == 0 and is_read_only(pod.container),
            "mounts": with_programs(self._mounts(pod, place / "volumes")),
            "workdir": pod.container.get("workingDir", "/"),
            "argv": pod.argv(address),
            "env": IMAGE_ENV | pod.own_env(address),
        }
        (place / "spec.json").write_text(json.dumps(spec))
        program = [sys.executable, str(PROGRAMS / "pod.py"), str(place / "spec.json")]
        with log.open("wb") as file:
            return subprocess.Popen([*self.network.command(), *program], stdout=file, stderr=file)

    def _mounts(self, pod: Pod, place: Path) -> list[Mount]:
        volumes = {volume["name"]: volume for volume in pod.template["spec"].get("volumes", ())}
        found = []
        for mount in pod.container.get("volumeMounts", ()):
            assert not mount.keys() - {"name", "mountPath", "readOnly"}
            source, fixed = self._source(volumes[mount["name"]], place)
            found.append((mount["mountPath"], str(source), fixed or mount.get("readOnly", False)))
        return found

    def _source(self, volume: Object, place: Path) -> tuple[Path, bool]:
        """The folder behind a volume, and whether it can never be written to."""
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"]), False
        if "persistentVolumeClaim" in volume:
            return self.claims[volume["persistentVolumeClaim"]["claimName"]], False
        folder = place / volume["name"]
        folder.mkdir()
        if "configMap" in volume:
            for name, text in self._config_map(volume["configMap"]["name"])["data"].items():
                (folder / name).write_text(text)
            return folder, True
        assert "emptyDir" in volume
        return folder, False

    def _config_map(self, name: str) -> Object:
        """The run's own ConfigMap, or another one of the namespace."""
        own = self.objects["ConfigMap"]
        return own if name == own["metadata"]["name"] else self.config_maps[name]

    def _publish(self) -> None:
        """What DNS says of the pods that live, and what the kubelet writes of each itself."""
        known = [f"{r.address} {' '.join(r.pod.all_names())}" for r in self.live.values()]
        for running in self.live.values():
            own = own_hosts(running.pod, running.address)
            hosts = self.folder / running.address / "hosts"
            hosts.write_text(own + "".join(f"{line}\n" for line in known))

    def step(self) -> None:
        """Do what the controller does about the pods that have ended since the last call."""
        for node, running in list(self.live.items()):
            code = running.process.poll()
            if code is not None:
                del self.live[node]
                # What a runtime says of it; unshare leaves with 1.
                code = 128 + signal.SIGKILL if running.killed else code
                running.code = code
                self.codes.append(code)
                if node not in self.ending:
                    self._act(node, self.controller.ended(node, code))
        if self.start_all and not self.live:
            self.start_all, self.ending = False, set()
            self.start()

    def _act(self, node: int, do: Do) -> None:
        if do is Do.POD_ANEW:
            self.start(node)
        elif do is not Do.NOTHING:
            self.end_pods()
            self.start_all = do is Do.ALL_ANEW
            self.state = Do.NOTHING if self.start_all else do

    def end_pods(self) -> None:
        """Ask all pods to end; the controller makes no new ones for them."""
        self.ending = set(self.live)
        for running in self.live.values():
            running.send(signal.SIGTERM)

    def wait(self, condition: Callable[[], object], what: str, timeout_s: float = END_S) -> None:
        """Return as soon as the condition holds; fail with the pods' logs if it does not."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}\n{self.logs()}"
            self.step()
            time.sleep(0.02)

    def ends(self, timeout_s: float = END_S) -> Do:
        """How the object ends, with no pod left."""
        self.wait(lambda: self.state is not Do.NOTHING and not self.live, "the end", timeout_s)
        return self.state

    def logs(self) -> str:
        """What the pods have said, each with its last lines."""
        paths = [running.log for running in self.history]
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-4000:]}" for p in paths)

    def close(self) -> None:
        """Kill what a failed test has left."""
        for running in self.live.values():
            if process := find(running.process.pid):
                process.send(signal.SIGKILL)
            running.process.wait()
