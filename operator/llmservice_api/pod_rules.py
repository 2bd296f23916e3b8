"""CEL rules of spec.runtime and spec.podTemplate: additions must not replace what the operator depends on."""

from collections.abc import Mapping
from types import MappingProxyType

from llmservice_runtime import contract

from llmservice_api.base import Rule, cel_list
from llmservice_api.constants import GROUP
from llmservice_api.kubernetes import VOLUME_SOURCES
from llmservice_api.runtime import ENV_LENGTH, ENV_TOO_LONG

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
