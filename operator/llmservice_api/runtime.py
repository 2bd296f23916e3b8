"""spec.runtime and spec.podTemplate: the container and the pod around it.

Their CEL rules: additions must not replace what the operator depends on.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from llmservice_runtime import contract
from llmservice_vllm.versions import default_version
from pydantic import AfterValidator, StringConstraints

from llmservice_api import kubernetes
from llmservice_api.base import ApiModel, ImageRef, Json, Many, ObjectName, Rule, cel_list, knob, leaf, section
from llmservice_api.constants import GROUP
from llmservice_api.kubernetes import VOLUME_SOURCES

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


OWN_VOLUMES = (
    *("runtime", "run", "home", "tmp", "cache", "models", "source", "draft", "adapters", "chat-template", "dshm"),
    *("ca-bundle", "endpoint-keys", "fetch", "fetch-tmp"),
)
OWN_VOLUME_PREFIX = "adapter-"
START_CACHE_VOLUME = "start-cache"
"""Reserved only with spec.startCache: other stored services may have such a volume."""
OWN_CONTAINERS = (contract.SERVER_CONTAINER, contract.RUNTIME_CONTAINER, contract.FETCH_CONTAINER)
# Mounts here would hide the operator's files or the system's. Folders below /tmp and the home folder are allowed.
OWN_PATHS = (
    *("/", "/dev", "/dev/shm", "/etc", "/home", "/proc", "/sys", "/tmp", "/usr", "/var", "/bin", "/lib"),
    contract.HOME_DIR,
)
# The supervisor, its imports and the model's folder depend on these.
OWN_VARIABLES = ("HOME", "USER", "LOGNAME", "PYTHONPATH", "PYTHONHOME", "HF_HOME", "HF_HUB_CACHE", "VLLM_PORT")
# Limits that the user may set.
SECONDS_VARIABLES = (
    contract.START_SECONDS_ENV,
    contract.STALL_SECONDS_ENV,
    contract.HANG_UNREADY_SECONDS_ENV,
    contract.HANG_RESTART_SECONDS_ENV,
)

_PATH = "self.mountPath.matches('.+/$') ? self.mountPath.substring(0, self.mountPath.size() - 1) : self.mountPath"

ENV_ITEM = (
    Rule(
        "self.name.matches('^[A-Za-z_][A-Za-z0-9_.-]*$')",
        "must be letters, digits, _ . or - and begin with a letter or _",
        ".name",
    ),
    Rule(
        f"self.name != '{contract.API_KEY_ENV}'",
        "comes from a Secret: set spec.endpoint.apiKeySecretRef instead",
        ".name",
    ),
    Rule(
        f"!(self.name in {cel_list([contract.HF_TOKEN_ENV, 'HUGGING_FACE_HUB_TOKEN'])})",
        "comes from a Secret: set spec.model.hfTokenSecretRef instead",
        ".name",
    ),
    Rule(
        f"!(self.name in {cel_list(OWN_VARIABLES)}) && "
        f"(!self.name.startsWith('LLMSERVICE_') || self.name in {cel_list(SECONDS_VARIABLES)})",
        "is set by the operator, whose supervisor and model files depend on it: remove it",
        ".name",
    ),
    Rule(
        "!has(self.value) || !has(self.valueFrom)",
        "give either value or valueFrom: remove one of the two",
        ".valueFrom",
    ),
)

ENV = (Rule(f"self.map(item, has(item.value) ? item.value.size() : 0).sum() <= {ENV_LENGTH}", ENV_TOO_LONG),)

RESOURCE_KEYS = (
    Rule(
        "self.all(name, name in ['cpu', 'memory', 'ephemeral-storage'] || name.startsWith('hugepages-'))",
        "only cpu, memory, ephemeral-storage and hugepages-*: GPUs follow from spec.parallelism and spec.accelerator, "
        "and another resource name goes into spec.accelerator.resourceName",
    ),
)

_COMPARED = ("cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "hugepages-1Gi")
RESOURCES = (
    Rule(
        # Not self.requests.all(...), whose estimated cost exceeds Kubernetes 1.31's limit for one rule.
        f"!has(self.limits) || !has(self.requests) || {cel_list(_COMPARED)}.all(name, !(name in self.requests) || "
        "!(name in self.limits) || "
        "quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)",
        "must not be more than the limit of the same name: lower the request or raise the limit",
        ".requests",
    ),
)

POD_KEYS = (
    Rule(
        f"self.all(key, !key.startsWith('{GROUP}/') && !key.startsWith('app.kubernetes.io/'))",
        f"keys of {GROUP}/ and app.kubernetes.io/ belong to the operator: use a domain of your own",
    ),
    Rule(
        "self.all(key, key.matches('^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?"
        "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",
        "each key must be NAME or DOMAIN/NAME; the name is at most 63 letters, digits, - _ and . and begins and ends "
        "with a letter or digit",
    ),
)

TOLERATION = (
    Rule(
        "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''",
        "must be left out when operator is Exists: remove it, or set operator to Equal",
        ".value",
    ),
    Rule(
        "(has(self.key) && self.key != '') || (has(self.operator) && self.operator == 'Exists')",
        "without a key operator must be Exists, which tolerates every taint: add a key, or set operator to Exists",
        ".operator",
    ),
    Rule(
        "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
        "only for the effect NoExecute: remove it, or set effect to NoExecute",
        ".tolerationSeconds",
    ),
)

SPREAD = (Rule("self.maxSkew >= 1", "must be at least 1: 1 is the most even spread", ".maxSkew"),)

_COUNT = " + ".join(f"(has(self.{source}) ? 1 : 0)" for source in VOLUME_SOURCES)

VOLUME = (
    Rule(
        f"!(self.name in {cel_list(OWN_VOLUMES)}) && !self.name.startsWith('{OWN_VOLUME_PREFIX}')",
        f"is a volume of the operator's own: choose another name than {', '.join(OWN_VOLUMES)} and "
        f"{OWN_VOLUME_PREFIX}*",
        ".name",
    ),
    Rule(
        f"{_COUNT} == 1",
        "must have exactly one source, for example configMap, secret, persistentVolumeClaim or emptyDir",
    ),
)

MOUNT = (
    Rule(
        "self.mountPath.matches('^/[^:]*$') && !self.mountPath.matches('(^|/)[.][.](/|$)')",
        "must be an absolute path without : and ..",
        ".mountPath",
    ),
    Rule(
        f"!(({_PATH}) in {cel_list(OWN_PATHS)}) && !self.mountPath.matches('^/llmservice(/|$)')",
        "would hide a folder that the server needs: choose another, for example /mnt/NAME",
        ".mountPath",
    ),
)

INIT_CONTAINER = (
    Rule(
        f"!(self.name in {cel_list(OWN_CONTAINERS)})",
        f"is a container of the operator's own: choose another name than {', '.join(OWN_CONTAINERS)}",
        ".name",
    ),
    Rule("has(self.image) && self.image != ''", "needs an image: set image"),
)

POD_SPEC = (
    Rule(
        "!has(self.volumeMounts) || self.volumeMounts.all(mount, has(self.volumes) && "
        "self.volumes.exists(volume, volume.name == mount.name))",
        "each must name a volume that is declared in volumes: add the volume there, or correct the name",
        ".volumeMounts",
    ),
)

_POD = "spec.podTemplate.spec"

POD_RULES: Mapping[str, tuple[Rule, ...]] = MappingProxyType(
    {
        "spec.runtime.env": ENV,
        "spec.runtime.env[]": ENV_ITEM,
        "spec.runtime.resources": RESOURCES,
        "spec.runtime.resources.requests": RESOURCE_KEYS,
        "spec.runtime.resources.limits": RESOURCE_KEYS,
        "spec.podTemplate.metadata.labels": POD_KEYS,
        "spec.podTemplate.metadata.annotations": POD_KEYS,
        _POD: POD_SPEC,
        f"{_POD}.tolerations[]": TOLERATION,
        f"{_POD}.topologySpreadConstraints[]": SPREAD,
        f"{_POD}.volumes[]": VOLUME,
        f"{_POD}.volumeMounts[]": MOUNT,
        f"{_POD}.initContainers[]": INIT_CONTAINER,
    }
)
