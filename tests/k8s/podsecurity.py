"""The Pod Security Standards, control by control.

Kubernetes documentation, "Pod Security Standards" (1.37): `baseline` refuses known ways to the
node, `restricted` asks for what a hardened pod has. A control is named as the page names it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BASELINE_CAPABILITIES = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
    *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
RESTRICTED_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}
SYSCTLS = {
    *(
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_unprivileged_port_start",
    ),
    *("net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"),
    *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout"),
    *("net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes"),
}
SECCOMP = {"RuntimeDefault", "Localhost"}


def broken(spec: dict[str, Any], level: str) -> list[str]:
    """The names of the controls of `level` (baseline or restricted) that a PodSpec breaks."""
    controls = BASELINE if level == "baseline" else {**BASELINE, **RESTRICTED}
    return sorted(name for name, holds in controls.items() if not holds(spec))


def _containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("initContainers", ()), *spec.get("containers", ())]


def _context(container: dict[str, Any]) -> dict[str, Any]:
    context: dict[str, Any] = container.get("securityContext", {})
    return context


def _contexts(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [_context(spec), *map(_context, _containers(spec))]


def _added(container: dict[str, Any]) -> set[str]:
    return set(_context(container).get("capabilities", {}).get("add", ()))


def _effective(spec: dict[str, Any], key: str) -> list[Any]:
    """What holds for each container: its own setting, else the pod's, else None."""
    pod = _context(spec).get(key)
    return [_context(container).get(key, pod) for container in _containers(spec)]


def _seccomp_not_off(spec: dict[str, Any]) -> bool:
    profiles = [context.get("seccompProfile", {"type": None}) for context in _contexts(spec)]
    return all(profile["type"] in {None, *SECCOMP} for profile in profiles)


def _host_ports(spec: dict[str, Any]) -> bool:
    ports = [port for container in _containers(spec) for port in container.get("ports", ())]
    return not any(port.get("hostPort") for port in ports)


def _sysctls(spec: dict[str, Any]) -> bool:
    return {sysctl["name"] for sysctl in _context(spec).get("sysctls", ())} <= SYSCTLS


def _non_root_user(spec: dict[str, Any]) -> bool:
    return all(context.get("runAsUser") != 0 for context in _contexts(spec))


def _drops_all(spec: dict[str, Any]) -> bool:
    return all(
        "ALL" in _context(container).get("capabilities", {}).get("drop", ())
        and _added(container) <= {"NET_BIND_SERVICE"}
        for container in _containers(spec)
    )


BASELINE: dict[str, Callable[[dict[str, Any]], bool]] = {
    "HostProcess": lambda spec: not any("windowsOptions" in c for c in _contexts(spec)),
    "Host Namespaces": lambda spec: (
        not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
    ),
    "Privileged Containers": lambda spec: not any(c.get("privileged") for c in _contexts(spec)),
    "Capabilities": lambda spec: all(
        _added(container) <= BASELINE_CAPABILITIES for container in _containers(spec)
    ),
    "HostPath Volumes": lambda spec: not any("hostPath" in v for v in spec.get("volumes", ())),
    "Host Ports": _host_ports,
    "SELinux": lambda spec: not any("seLinuxOptions" in c for c in _contexts(spec)),
    "/proc Mount Type": lambda spec: not any("procMount" in c for c in _contexts(spec)),
    "Seccomp": _seccomp_not_off,
    "Sysctls": _sysctls,
}
RESTRICTED: dict[str, Callable[[dict[str, Any]], bool]] = {
    "Volume Types": lambda spec: all(
        set(volume) - {"name"} <= RESTRICTED_VOLUMES for volume in spec.get("volumes", ())
    ),
    "Privilege Escalation": lambda spec: all(
        _context(c).get("allowPrivilegeEscalation") is False for c in _containers(spec)
    ),
    "Running as Non-root": lambda spec: all(
        value is True for value in _effective(spec, "runAsNonRoot")
    ),
    "Running as Non-root user": _non_root_user,
    "Seccomp (restricted)": lambda spec: all(
        profile is not None and profile["type"] in SECCOMP
        for profile in _effective(spec, "seccompProfile")
    ),
    "Capabilities (restricted)": _drops_all,
}
