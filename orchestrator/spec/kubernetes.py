"""What a Kubernetes cluster needs: facts of the profile, or of a job file's `clusters.NAME`.

Names of keys are Kubernetes' own in snake case; what each becomes is in its description.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from orchestrator import __version__
from orchestrator.spec.base import Duration, Part, Size, TypeWords, as_tuple, section
from orchestrator.spec.environment import Environment
from orchestrator.spec.kubernetes_maps import (
    Annotations,
    Labels,
    ResourceCounts,
    Selector,
    SidecarNames,
    Texts,
    VariableNames,
    VolumeNames,
)
from orchestrator.spec.kubernetes_queues import Coscheduling, Kueue, Volcano
from orchestrator.spec.kubernetes_types import (
    AbsolutePath,
    DnsLabel,
    Image,
    LabelKey,
    LabelledName,
    LabelValue,
    LabelValues,
    Mount,
    Nfs,
    ObjectName,
    ObjectNames,
    Program,
    ResourceName,
    SecretKeyName,
    Words,
)
from orchestrator.spec.slurm import Line

MAX_INT32 = 2**31 - 1  # of max_skew, and of users' numbers


class Toleration(Part):
    """A taint that the pods bear (core/v1 Toleration)."""

    key: LabelKey | None = Field(default=None, description="The taint's key; all keys without it.")
    operator: Literal["Equal", "Exists"] = Field(
        default="Exists", description="Whether the taint's value counts."
    )
    value: LabelValue | None = Field(default=None, description="The taint's value, with Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="The taint's effect; all effects without it."
    )


Tolerations = Annotated[
    tuple[Toleration, ...],
    BeforeValidator(as_tuple),
    TypeWords("list of {key, operator, value, effect}"),
]


class NodeRequirement(Part):
    """What a node's label must be (core/v1 NodeSelectorRequirement)."""

    key: LabelKey = Field(description="The label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(
        default="In", description="How it is compared."
    )
    values: LabelValues = Field(
        default=(), description="With what; none for Exists and DoesNotExist."
    )


NodeRequirements = Annotated[
    tuple[NodeRequirement, ...],
    BeforeValidator(as_tuple),
    TypeWords("list of {key, operator, values}"),
]


class Spread(Part):
    """How evenly the run's pods lie over a topology (core/v1 TopologySpreadConstraint)."""

    topology_key: LabelKey = Field(description="The node label that names the domain.")
    max_skew: int = Field(
        default=1, ge=1, le=MAX_INT32, description="Most pods that domains may differ by."
    )
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        default="DoNotSchedule", description="What happens where that is not possible."
    )


Spreads = Annotated[
    tuple[Spread, ...],
    BeforeValidator(as_tuple),
    TypeWords("list of {topology_key, max_skew, when_unsatisfiable}"),
]


class Volume(Part):
    """Where a mount comes from: exactly one of pvc, host_path, nfs, csi, secret, config_map,
    empty_dir."""

    mount: Mount | None = Field(default=None, description="Folder in the pods, absolute.")
    read_only: bool = Field(default=False, description="Whether pods may not write to it.")
    pvc: ObjectName | None = Field(default=None, description="Name of a PersistentVolumeClaim.")
    host_path: AbsolutePath | None = Field(
        default=None, description="Folder of the node, absolute."
    )
    nfs: Nfs | None = Field(default=None, description="SERVER:/PATH of an NFS export.")
    csi: LabelledName | None = Field(
        default=None, description="Driver of an inline CSI volume, such as an object store's."
    )
    csi_attributes: Texts = Field(
        default_factory=dict, description="volumeAttributes for the CSI driver."
    )
    csi_secret: ObjectName | None = Field(
        default=None, description="Name of the Secret that the CSI driver reads."
    )
    secret: ObjectName | None = Field(default=None, description="Name of a Secret, a file a key.")
    config_map: ObjectName | None = Field(default=None, description="Name of a ConfigMap.")
    empty_dir: bool = Field(default=False, description="An empty folder that ends with the pod.")


class SecretKey(Part):
    """A key of a Secret."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretKeyName = Field(description="Key in it.")


class SidecarImage(Part):
    """What a container beside the trainer is made of."""

    image: Image = Field(description="Its image.")
    args: Words | None = Field(
        default=None, description="Its arguments, in place of those that the fabric gives it."
    )
    env: Environment = Field(
        default_factory=dict, description="Its environment variables, over the fabric's."
    )


class Kubernetes(Part):
    """Where the pods run, what they may use, and who admits them."""

    context: Line | None = Field(
        default=None, description="Context of the kubeconfig; by default its current one."
    )
    namespace: DnsLabel | None = Field(
        default=None, description="Namespace; by default the context's, and none is rendered."
    )
    trainjob_version: Literal["2.1", "2.2", "2.3"] = Field(
        default="2.3", description="Release of Kubeflow Trainer that the cluster has."
    )
    image: Image | None = Field(
        default=None,
        description="The trainer's image; by default orchestrate-trainer with the tool's version "
        "as tag (k8s/image).",
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        default=None, description="imagePullPolicy; Kubernetes' own default without it."
    )
    image_pull_secrets: ObjectNames = Field(
        default=(), description="Names of Secrets for the registry."
    )
    launcher_from: Literal["image", "config-map"] = Field(
        default="image",
        description="Where node.py comes from: the image, or the run's ConfigMap for an image "
        "that has the trainer and no launcher of this version.",
    )
    python: Program = Field(
        default="python3",
        description="Python that starts node.py and the trainer, with launcher_from: config-map.",
    )
    workdir: AbsolutePath = Field(
        default="/workspace",
        description="Folder that relative paths of the job file are relative to; absolute.",
    )
    labels: Labels = Field(default_factory=dict, description="Labels of all objects and pods.")
    annotations: Annotations = Field(
        default_factory=dict, description="Annotations of all objects and pods."
    )
    gpu_resource: ResourceName = Field(
        default="nvidia.com/gpu",
        description="Resource by which a pod asks for GPUs; the fabric's where that names one.",
    )
    gpu_type_label: LabelKey = Field(
        default="nvidia.com/gpu.product",
        description="Node label that resources.gpu_type is compared with.",
    )
    extra_resources: ResourceCounts = Field(
        default_factory=dict,
        description="More extended resources of each pod, such as rdma/ib: '1'; request = limit. "
        "One with a / in its name takes the place of those that the fabric needs.",
    )
    grace: Duration | None = Field(
        default=None,
        description="How long a pod has before its node takes it away, as on spot nodes; "
        "timeouts.shutdown has to be at most that. By default not checked.",
    )
    rdma: bool = Field(
        default=False,
        description="The pods register memory with a network card: IPC_LOCK. Where it is not "
        "written, the fabric says.",
    )
    sidecars: Annotated[
        dict[str, SidecarImage],
        SidecarNames,
        TypeWords("map of containers to {image, args, env}"),
    ] = Field(
        default_factory=dict,
        description="Containers that the fabric needs beside the trainer, by the name that it has "
        "for them: orchestrate fabric show NAME.",
    )
    shm_size: Size = Field(
        default=2 * 2**30,
        json_schema_extra={"default": "2GiB"},
        description="/dev/shm of each pod, in memory; it counts toward resources.memory.",
    )
    host_network: bool = Field(
        default=False,
        description="The pods use the node's network: hostNetwork and its DNS policy. Where it is "
        "not written, the fabric says.",
    )
    node_selector: Selector = Field(default_factory=dict, description="nodeSelector.")
    node_affinity: NodeRequirements = Field(
        default=(), description="What nodes' labels must be, all of it."
    )
    tolerations: Tolerations = Field(default=(), description="Taints that the pods bear.")
    topology_spread: Spreads = Field(
        default=(), description="How evenly the run's pods lie over a topology."
    )
    pack: LabelKey | None = Field(
        default=None,
        description="Node label of the domain in which all pods of the run must lie together "
        "(podAffinity with this topologyKey).",
    )
    priority_class: ObjectName | None = Field(default=None, description="priorityClassName.")
    service_account: ObjectName | None = Field(default=None, description="serviceAccountName.")
    runtime_class: ObjectName | None = Field(default=None, description="runtimeClassName.")
    pod_security: Literal["restricted", "baseline", "none"] = Field(
        default="restricted",
        description="Level of Pod Security that the pods keep to: the namespace's, or a stricter "
        "one. rdma, host_network and host_path need none, nfs needs baseline.",
    )
    run_as_user: int | None = Field(
        default=1000, ge=0, le=MAX_INT32, description="runAsUser; null for the image's own."
    )
    run_as_group: int | None = Field(
        default=1000, ge=0, le=MAX_INT32, description="runAsGroup; null for the image's own."
    )
    fs_group: int | None = Field(
        default=1000,
        ge=0,
        le=MAX_INT32,
        description="fsGroup, with fsGroupChangePolicy OnRootMismatch.",
    )
    runs: Volume = section(
        "The volume that is mounted at the profile's runs_root; all nodes write to it."
    )
    volumes: Annotated[
        dict[str, Volume], VolumeNames, TypeWords("map of volume names to {mount, pvc, ...}")
    ] = Field(default_factory=dict, description="More volumes by name.")
    secret_env: Annotated[
        dict[str, SecretKey],
        VariableNames,
        TypeWords("map of variables to {name, key} of a Secret"),
    ] = Field(default_factory=dict, description="Environment variables from Secrets.")
    kueue: Kueue | None = Field(default=None, description="Admission by Kueue.")
    volcano: Volcano | None = Field(default=None, description="Gang scheduling by Volcano.")
    coscheduling: Coscheduling | None = Field(
        default=None, description="Gang scheduling by scheduler-plugins' coscheduling."
    )
    suspend: bool = Field(
        default=False, description="Start suspended: no pod until somebody resumes the object."
    )
    keep_finished: Duration | None = Field(
        default=None,
        description="How long a finished object stays (ttlSecondsAfterFinished); by default for "
        "ever. Not with GitOps, which would make it again.",
    )

    @property
    def image_name(self) -> str:
        """The image of the pods, with the default filled in."""
        return self.image or f"orchestrate-trainer:{__version__}"
