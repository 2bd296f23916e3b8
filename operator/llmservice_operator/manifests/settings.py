"""Settings for all services, from the chart: images, users, defaults, network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from llmservice_planner.quantity import amount
from llmservice_vllm.versions import default_version

DEFAULT_VLLM_VERSION = default_version()
_ADDRESS = re.compile(r"[A-Za-z0-9.-]{1,253}:[0-9]{1,5}")
_QUANTITIES = frozenset({"helper_cpu", "helper_memory", "router_cpu", "router_memory", "router_memory_limit"})
_COLLECTIONS = (list, tuple, set, dict)


class InvalidSettings(ValueError):
    """A value of the settings file is unknown or has a wrong type; the message names the key."""


@dataclass(frozen=True, slots=True)
class CABundle:
    """A ConfigMap, in each namespace with services, with certificates that replace the image's."""

    config_map: str
    key: str = "ca.crt"


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of the chart for rendering pods."""

    operator_image: str = "llmservice-operator:dev"
    image_pull_policy: str | None = None
    """For the operator's image in init containers; None: Kubernetes' default."""
    default_gpu_image: str = f"vllm/vllm-openai:v{DEFAULT_VLLM_VERSION}"
    default_amd_image: str | None = None
    default_cpu_image: str | None = None
    """None: services on that kind of accelerator have to name an image."""
    run_as_user: int | None = 2000
    """None: the platform assigns UIDs, as OpenShift does; neither UID nor fsGroup is set."""
    image_pull_secrets: tuple[str, ...] = ()
    http_proxy: str | None = None
    https_proxy: str | None = None
    no_proxy: str | None = None
    hf_endpoint: str | None = None
    ca_bundle: CABundle | None = None
    cpu_per_gpu: int = 2
    memory_gib_per_gpu: int = 8
    cpu_only_cpu: str = "500m"
    cpu_only_memory_gib: int = 3
    cpu_kv_cache_gib: int = 1
    shared_memory_gib: int = 2
    helper_cpu: str = "50m"
    helper_memory: str = "64Mi"
    """Requests of each container beside the server; their limits are not lower."""
    fetch_cpu: str = "2"
    fetch_memory_gib: int = 2
    """Limits of the container that fetches models and adapters."""
    surge_deadline_seconds: int = 120
    """Seconds that a surge pod may wait for resources, with strategy Auto."""
    scaler_address: str | None = None
    """host:port of the scaler for KEDA; None: autoscaling is off."""
    scaler_authentication: str | None = None
    """The ClusterTriggerAuthentication with which KEDA authenticates to the scaler."""
    has_groups: bool = False
    """Whether replicas over several nodes are allowed: LeaderWorkerSets are then watched, and need a right."""
    has_group_policy: bool = True
    """Whether replicas over several nodes get a NetworkPolicy."""
    has_node_autoscaler: bool = False
    """Whether pods of a group look for nodes without room for all of them, one group at a time, so that nodes come."""
    has_dynamic_resources: bool = False
    """Whether services may claim devices: ResourceClaimTemplates are then watched, and need a right."""

    has_gateways: bool = False
    """Whether services may be reached by Gateways: HTTPRoutes and InferencePools are then watched, and need a right."""
    model_header: str = "X-Gateway-Model-Name"
    """With which requests at a Gateway name their model. One for all: of another header, such as Content-Type, a
    service could take what is not its own."""
    router_image: str | None = None
    """None: prompts are not routed. With one, services may ask for it, and the operator writes EndpointSlices."""
    router_cpu: str = "200m"
    router_memory: str = "256Mi"
    """Requests of each pod of a router."""
    router_memory_limit: str = "1Gi"

    @property
    def activator_service(self) -> tuple[str, str] | None:
        """Name and namespace of the activators' Service, from the scaler's address; None: autoscaling is off."""
        host = (self.scaler_address or "").rpartition(":")[0]
        name, _, rest = host.partition(".")
        namespace = rest.partition(".")[0]
        return (name, namespace) if name and namespace else None

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """From the settings file: camelCase keys; absent and null ones have defaults."""
        by_key = {_camel(field.name): field.name for field in fields(cls)}
        if odd := [key for key in mapping if not isinstance(key, str)]:
            raise InvalidSettings(f"a key is of type {type(odd[0]).__name__}; keys are names")
        unknown = sorted(set(mapping) - set(by_key))
        if unknown:
            raise InvalidSettings(f"unknown settings: {', '.join(unknown)}; known are {', '.join(sorted(by_key))}")
        values = {by_key[key]: value for key, value in mapping.items() if value not in (None, "")}
        if "runAsUser" in mapping and mapping["runAsUser"] is None:
            values["run_as_user"] = None
        if "ca_bundle" in values:
            values["ca_bundle"] = _ca_bundle(values["ca_bundle"])
        if "image_pull_secrets" in values:
            values["image_pull_secrets"] = _names("imagePullSecrets", values["image_pull_secrets"])
        for name in _QUANTITIES & set(values):
            _check_quantity(name, values[name])
        _check_address(values.get("scaler_address"))
        for name, value in values.items():
            _check_type(name, value, getattr(cls(), name))
        return cls(**values)


def _ca_bundle(value: Any) -> CABundle | None:
    if not isinstance(value, Mapping) or set(value) - {"configMap", "key"}:
        raise InvalidSettings("caBundle: give configMap (a name) and, where it is not ca.crt, key")
    if any(isinstance(one, _COLLECTIONS) for one in value.values()):
        raise InvalidSettings("caBundle: configMap and key are names")
    if not value.get("configMap"):
        return None
    return CABundle(str(value["configMap"]), str(value.get("key") or "ca.crt"))


def _check_address(value: object) -> None:
    if value is not None and not (isinstance(value, str) and _ADDRESS.fullmatch(value)):
        raise InvalidSettings("scalerAddress: give the host and the port of the scaler, as host:port")


def _check_quantity(name: str, value: object) -> None:
    try:
        is_some = isinstance(value, str) and amount(value) > 0
    except ValueError:
        is_some = False
    if not is_some:
        raise InvalidSettings(f"{_camel(name)}: give a quantity above 0, such as 100m or 128Mi, in quotes")


def _names(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise InvalidSettings(f"{key}: give a list of names")
    return tuple(value)


def _check_type(name: str, value: object, default: object) -> None:
    """InvalidSettings without the value of a collection: YAML aliases may expand to much more than the file."""
    if isinstance(value, _COLLECTIONS) and not isinstance(default, tuple):
        raise InvalidSettings(f"{_camel(name)}: a {type(value).__name__} is not a single value")
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise InvalidSettings(f"{_camel(name)}: {value!r} is neither true nor false")
    elif isinstance(default, int) and (isinstance(value, bool) or not isinstance(value, int | None)):
        raise InvalidSettings(f"{_camel(name)}: {value!r} is not an integer")


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)
