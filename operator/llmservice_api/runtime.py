"""spec.runtime and spec.podTemplate: the container and the pod around it."""

from typing import Annotated, Literal

from llmservice_vllm.versions import default_version
from pydantic import AfterValidator, StringConstraints

from llmservice_api import kubernetes
from llmservice_api.base import ApiModel, ImageRef, Json, Many, ObjectName, knob, leaf, section

ExtraArg = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")]
AnnotationValue = Annotated[str, StringConstraints(max_length=4096)]
Version = Annotated[str, StringConstraints(min_length=5, max_length=32, pattern=r"^v?[0-9]+\.[0-9]+\.[0-9]+$")]


ENV_LENGTH = 32_768
"""Characters of all values in spec.runtime.env together."""
ENV_TOO_LONG = (
    f"all values together may have at most {ENV_LENGTH:,} characters: put long ones into a ConfigMap, and name it in "
    "valueFrom or mount it with spec.podTemplate.spec.volumes"
)


def _short(variables: list[Json]) -> list[Json]:
    if sum(len(str(variable.get("value") or "")) for variable in variables) > ENV_LENGTH:
        raise ValueError(ENV_TOO_LONG)
    return variables


class Runtime(ApiModel):
    """The container that vLLM runs in."""

    image: ImageRef | None = knob(
        description="Image with vLLM in it; the operator puts its supervisor into any. Default: vLLM's own image for "
        "the accelerator's type, of the version that the operator was made for.",
        examples=[f"vllm/vllm-openai:v{default_version()}"],
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = knob(
        description="When the image is pulled, and images of models (image://). Default: Kubernetes' own, "
        "IfNotPresent unless the tag is `latest`.",
        examples=["IfNotPresent"],
    )
    image_pull_secrets: kubernetes.ImagePullSecrets = leaf(
        list,
        description="Secrets of the same namespace with logins for the image's registry.",
        examples=[[{"name": "registry-login"}]],
    )
    version: Version | None = knob(
        description="vLLM version in the image, which decides what flags exist. Needed when the image's tag does not "
        "name it. Default: read from the tag.",
        examples=[default_version()],
    )
    resources: kubernetes.ResourceRequirements = leaf(
        dict,
        description="CPU and memory of the server container. GPUs follow from parallelism and accelerator and may not "
        "be named here. Default: requests that a small model starts with.",
        examples=[{"requests": {"cpu": "4", "memory": "16Gi"}, "limits": {"memory": "32Gi"}}],
    )
    env: Annotated[kubernetes.EnvVars, AfterValidator(_short)] = leaf(
        list,
        description="Environment variables of the server container. Those that the operator sets itself may not be "
        f"named here. The values may have {ENV_LENGTH:,} characters together.",
        examples=[[{"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}]],
    )
    sleep_mode: bool = knob(
        False,
        description="Let the model be put to sleep and woken up (--enable-sleep-mode): its GPU memory is then free "
        "while the pod stays. Sleep and wake-up are asked for with the pod's own token, through `kubectl "
        "port-forward`; to clients they are closed. Not on CPUs.",
        examples=[True],
        flag="--enable-sleep-mode",
    )
    extra_args: Many[ExtraArg] = knob(
        (),
        description="Further flags for `vllm serve`, for what has no field of its own; one flag or value an item. A "
        "flag that repeats a field or that the operator owns is refused, and so is one that this vLLM does not know.",
        examples=[["--generation-config=vllm", "--cpu-offload-gb=4"]],
        max_length=64,
    )


class PodMetadata(ApiModel):
    """Labels and annotations that pods get beside the operator's own."""

    labels: dict[str, LabelValue] = leaf(
        dict,
        description="Labels for the pods. Keys of llmservice.dev and app.kubernetes.io belong to the operator.",
        examples=[{"team": "search"}],
        max_length=64,
    )
    annotations: dict[str, AnnotationValue] = leaf(
        dict,
        description="Annotations for the pods. Keys of llmservice.dev and app.kubernetes.io belong to the operator.",
        examples=[{"example.com/cost-centre": "4711"}],
        max_length=64,
    )


class PodSpec(ApiModel):
    """The fields of a pod's spec that may be set; they have Kubernetes' own shape."""

    node_selector: dict[str, LabelValue] = leaf(
        dict,
        description="Node labels that pods need, beside what accelerator.products asks for.",
        examples=[{"pool": "gpu"}],
        max_length=64,
    )
    tolerations: kubernetes.Tolerations = leaf(
        list,
        description="Taints that pods tolerate, beside the accelerator's own.",
        examples=[[{"key": "dedicated", "operator": "Equal", "value": "llm", "effect": "NoSchedule"}]],
    )
    affinity: kubernetes.Affinity = leaf(
        dict,
        description="Affinity rules of the pods. A rule about pods without labelSelector is about the service's own.",
        examples=[{"podAntiAffinity": {}}],
    )
    topology_spread_constraints: kubernetes.TopologySpreadConstraints = leaf(
        list,
        description="How pods spread over zones or nodes. A constraint without labelSelector counts the service's own "
        "pods.",
        examples=[[{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}]],
    )
    priority_class_name: ObjectName | None = knob(description="Priority class of the pods.", examples=["production"])
    scheduler_name: ObjectName | None = knob(
        description="Scheduler that places the pods. Default: the cluster's.", examples=["gpu-scheduler"]
    )
    runtime_class_name: ObjectName | None = knob(
        description="Runtime class of the pods, where GPUs need one.", examples=["nvidia"]
    )
    service_account_name: ObjectName | None = knob(
        description="Service account of the pods, for platforms that bind rights or images to one. Its token is not "
        "mounted. Default: the namespace's default.",
        examples=["llm"],
    )
    security_context: kubernetes.PodSecurityContext = leaf(
        dict,
        description="Security context of the pods; fields given here replace the operator's (runAsNonRoot, a numeric "
        "user, fsGroup, seccomp RuntimeDefault). For platforms that assign user ids.",
        examples=[{"runAsUser": 1000, "fsGroup": 1000}],
    )
    volumes: kubernetes.Volumes = leaf(
        list,
        description="Further volumes of the pods. Names that the operator uses itself are refused.",
        examples=[[{"name": "certificates", "configMap": {"name": "company-ca"}}]],
    )
    volume_mounts: kubernetes.VolumeMounts = leaf(
        list,
        description="Where the server container mounts them. Each names a volume declared in volumes.",
        examples=[[{"name": "certificates", "mountPath": "/etc/company", "readOnly": True}]],
    )
    init_containers: kubernetes.InitContainers = leaf(
        list,
        description="Containers that run to their end before the server starts, in order, after the operator's own; "
        "with restartPolicy Always they are sidecars.",
        examples=[[{"name": "warm-up", "image": "busybox:1.36", "command": ["true"]}]],
    )


class PodTemplate(ApiModel):
    """What the pods get beside what the operator renders: a closed list of PodTemplateSpec's own fields."""

    metadata: PodMetadata = section(PodMetadata, "Labels and annotations of the pods.")
    spec: PodSpec = section(PodSpec, "Placement, identity, volumes and further containers of the pods.")
