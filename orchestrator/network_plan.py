"""What becomes of `network`: device, backend, fabric and the variables of the libraries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.fabric_pods import for_pods
from orchestrator.spec.kubernetes_target import KUBERNETES_TARGETS

if TYPE_CHECKING:
    from orchestrator.fabrics import Pods, Preset
    from orchestrator.spec import JobSpec

# Of the backends that need a device of their own; gloo sums on the CPU for any.
DEVICES = {"nccl": "cuda", "xccl": "xpu", "hccl": "npu", "cncl": "mlu"}
# Variable and mark before the name. torch.distributed documentation, "Choosing the network
# interface to use". Without the mark NCCL takes the name for the beginning of one (NCCL user guide,
# NCCL_SOCKET_IFNAME). The others: data/variables.yaml.
INTERFACE_VARIABLES = {
    "gloo": ("GLOO_SOCKET_IFNAME", ""),
    "nccl": ("NCCL_SOCKET_IFNAME", "="),
    "xccl": ("CCL_KVS_IFACE", ""),
    "hccl": ("HCCL_SOCKET_IFNAME", "="),
}
# NCCL user guide, NCCL_SOCKET_FAMILY.
FAMILIES = {"ipv4": "AF_INET", "ipv6": "AF_INET6"}


@dataclass(frozen=True)
class NetworkPlan:
    """How the ranks talk to one another, with nothing left to decide.

    The backend is not compared, nor what goes to the trainer alone: elements of a sweep, which
    differ in keys of the trainer, may have another with parallelism.cpu_offload, and the same
    libraries.

    Args:
        device: `cpu`, `cuda`, `xpu`, `npu` or `mlu`.
        backend: of torch.distributed.
        fabric: name of the preset that is used; None without one.
        promises: transports of which the library must report one between nodes.
        script: a vendor's script that each node sources; None without one.
        library_path: folders in front of LD_LIBRARY_PATH.
        pods: what the fabric needs of pods on Kubernetes.
        interface: the interface between the ranks; None where each node finds it.
        expected: interfaces by exact names, with commas, that the library has been told to use;
            None where each node finds it, or a variable of the user's gives no exact names.
        watch: what a report that breaks the promise does: off, warn, stop.
        debug: off, warn, trace.
        address_family: auto, ipv4, ipv6.
        host_suffix: ending of a node's name in the fast network.
        shared_gpus: whether ranks may be on slices of one GPU.
    """

    device: str
    backend: str = field(compare=False)
    fabric: str | None
    promises: tuple[str, ...]
    script: str | None
    library_path: tuple[str, ...]
    pods: Pods | None
    interface: str | None
    expected: str | None = field(compare=False)
    watch: str
    debug: str
    address_family: str
    host_suffix: str | None
    shared_gpus: bool

    @property
    def for_trainer(self) -> dict[str, Any]:
        """The part of trainer.json."""
        return {
            "fabric": self.fabric,
            "promises": list(self.promises),
            "watch": self.watch,
            "debug": self.debug,
            "interface": self.expected,
        }


def network_plan(
    spec: JobSpec, preset: Preset | None, interface: str | None, *, is_local: bool = False
) -> NetworkPlan:
    """Return the plan of the network.

    Args:
        preset: what network.fabric names; one that is not for the job's backend is not used.
        interface: the interface between the ranks.
        is_local: whether the nodes are simulated: their addresses are those of 127.0.0.0/8.
    """
    backend = backend_of(spec, preset)
    used = preset if is_for(preset, backend) else None
    return NetworkPlan(
        device=device_of(spec, backend),
        backend=backend,
        fabric=used.name if used else None,
        promises=used.promises if used else (),
        script=used.script.path if used and used.script else None,
        library_path=used.library_path if used else (),
        pods=used.kubernetes if used else None,
        interface=interface,
        expected=_expected(spec, backend, interface),
        watch=spec.network.watch,
        debug=spec.network.debug,
        address_family="auto" if is_local else spec.network.address_family,
        host_suffix=None if is_local else spec.network.host_suffix,
        shared_gpus=spec.network.shared_gpus,
    )


def preset_of(spec: JobSpec, target: str) -> Preset | None:
    """Return the preset that network.fabric names, as it is for the job; None without one.

    Args:
        target: what starts the job. Pods do not get what names what they have not of the node.

    Raises:
        UserError: there is no such preset.
        FaultsError: its file is faulty.
    """
    if spec.network.fabric is None:
        return None
    from orchestrator.fabrics import preset  # late: few jobs name one

    found = preset(spec.network.fabric)
    return for_pods(found, spec.kubernetes) if target in KUBERNETES_TARGETS else found


def backend_of(spec: JobSpec, preset: Preset | None) -> str:
    """Return the backend of torch.distributed; without one in the job, the fabric's with GPUs."""
    backend: str = spec.network.backend
    if backend == "auto":
        for_devices = [b for b in (preset.backends if preset else ()) if b in DEVICES]
        backend = (*for_devices, "nccl")[0] if spec.resources.gpus_per_node else "gloo"
    if backend == "nccl" and spec.parallelism.cpu_offload:
        return "cpu:gloo,cuda:nccl"  # nccl cannot sum what lies in the CPU's memory
    return backend


def device_of(spec: JobSpec, backend: str) -> str:
    """Return torch's name of the device that the ranks compute on."""
    if not spec.resources.gpus_per_node:
        return "cpu"
    return DEVICES.get(backend, "cuda")


def is_for(preset: Preset | None, backend: str) -> bool:
    """Return whether a preset is for a backend, or for a part of one such as cpu:gloo,cuda:nccl.

    gloo beside another counts as the other: its messages are not those that the fabric is for.
    """
    if preset is None:
        return False
    if backend in preset.backends:
        return True
    return any(f"cuda:{name}" in backend.split(",") for name in preset.backends)


def variables(spec: JobSpec, network: NetworkPlan, preset: Preset | None) -> dict[str, str]:
    """Return what the libraries get, the weakest first: the preset's, the launcher's own by
    interface and family, then network.env."""
    found = {}
    if preset is not None and network.fabric is not None:
        found.update({name: setting.value for name, setting in preset.variables.items()})
    found.update({name: value for name, (_, value) in own_variables(network).items()})
    return {**found, **spec.network.env}


def own_variables(network: NetworkPlan) -> dict[str, tuple[str, str]]:
    """Return key of `network` and value of each variable that the launcher sets by one, the same on
    all nodes."""
    own = {}
    variable, mark = _interface_variable(network.backend)
    if network.interface is not None and variable:
        own[variable] = ("interface", mark + network.interface)
    if network.address_family in FAMILIES and "nccl" in network.backend:
        own["NCCL_SOCKET_FAMILY"] = ("address_family", FAMILIES[network.address_family])
    return own


def node_variables(network: NetworkPlan) -> dict[str, tuple[str, str]]:
    """Return the same with what each node sets by such a key: gloo is there beside any library
    (network_variables in trainer/node.py)."""
    own = own_variables(network)
    if network.interface is not None:
        own["GLOO_SOCKET_IFNAME"] = ("interface", network.interface)
    return own


def _interface_variable(backend: str) -> tuple[str, str]:
    """Return the variable that names a library's interfaces, "" for none, and the mark of exact
    names. Of cpu:gloo,cuda:nccl it is that of nccl."""
    return INTERFACE_VARIABLES.get("nccl" if "nccl" in backend else backend, ("", ""))


def _expected(spec: JobSpec, backend: str, interface: str | None) -> str | None:
    variable, mark = _interface_variable(backend)
    own = {**spec.network.env, **spec.env}.get(variable)
    if own is None:
        return interface
    return own.removeprefix(mark) if own.startswith(mark) else None
