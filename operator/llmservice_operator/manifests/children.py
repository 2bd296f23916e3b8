"""Builders of the small children: Service, EndpointSlices of the activators, ConfigMap of the adapters, claims,
PodDisruptionBudget and ScaledObject."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llmservice_api.constants import (
    ADAPTERS_ANNOTATION,
    API_VERSION,
    CHILD_KINDS,
    GROUP,
    KIND,
    RANK_LABEL,
    cache_claim_name,
    start_cache_claim_name,
)
from llmservice_api.holding import ACTIVATOR_SLICES, SERVICE_NAME_LABEL, SLICE_MANAGER_LABEL, Activator, is_idle
from llmservice_api.lifecycle import Autoscaling
from llmservice_api.model import AccessMode
from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService
from llmservice_api.spec import LLMServiceSpec
from llmservice_runtime import adapter_list
from llmservice_runtime.contract import ADAPTERS_KEY, HTTP_PORT, HTTP_PORT_NAME, LEADER_PORT_NAME, STATE_PORT

from llmservice_operator.manifests import gateway
from llmservice_operator.manifests.meta import (
    Manifest,
    Owner,
    adapters_config_name,
    labels,
    metadata,
    selector,
    serving_selector,
)
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.manifests.sources import adapter_path


def has_adapters_config(llm: LLMService) -> bool:
    """Whether there is a ConfigMap of adapters: with LoRA, also for an empty list, which removes earlier adapters."""
    return llm.spec.is_lora_on


def _listed_adapters(llm: LLMService) -> str:
    """The list as supervisors read it, sorted by name, so that order in the spec does not matter."""
    return adapter_list.to_json(
        [
            adapter_list.Adapter(adapter.name, adapter.uri, adapter_path(llm.spec, adapter))
            for adapter in sorted(llm.spec.adapters, key=lambda adapter: adapter.name)
        ]
    )


def adapters_digest(llm: LLMService) -> str | None:
    """Hash of the list, which pods report once they have read it; None without LoRA."""
    return adapter_list.digest(_listed_adapters(llm)) if has_adapters_config(llm) else None


def adapters_config(llm: LLMService) -> Manifest:
    """The ConfigMap NAME-adapters."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(llm, adapters_config_name(llm)),
        "data": {ADAPTERS_KEY: _listed_adapters(llm)},
    }


def service(llm: LLMService, nodes: int = 1, *, is_every_pod: bool = False) -> Manifest:
    """A ClusterIP Service with the LLMService's name, the stable address of the replicas, each of so many nodes.

    `is_every_pod`: each pod of a replica answers requests, and not only its leader.
    """
    meta, listed = metadata(llm, llm.name), adapters_digest(llm)
    if listed is not None:
        meta["annotations"] = {ADAPTERS_ANNOTATION: listed}
    port = {
        "name": HTTP_PORT_NAME,
        "port": llm.spec.endpoint.port,
        "targetPort": LEADER_PORT_NAME if nodes > 1 else HTTP_PORT_NAME,
        "protocol": "TCP",
        "appProtocol": "http",
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {
            "type": "ClusterIP",
            "selector": serving_selector(llm, nodes, is_every_pod=is_every_pod),
            "ports": [port],
        },
    }


def url(name: str, namespace: str, port: int) -> str:
    """Base URL of the OpenAI API inside the cluster."""
    suffix = "" if port == 80 else f":{port}"
    return f"http://{name}.{namespace}.svc{suffix}/v1"


def endpoint(llm: LLMService) -> dict[str, Any]:
    """The value of status.endpoint, without adapters."""
    return {"url": url(llm.name, llm.namespace, llm.spec.endpoint.port), "modelNames": list(llm.served_model_names)}


def holding_slices(llm: Owner, port: int, activators: tuple[Activator, ...]) -> tuple[Manifest, ...]:
    """EndpointSlices that direct a service's requests to the activators while no replica serves, one per address
    family.

    The Service keeps its selector; kube-proxy uses the endpoints of all slices with the Service's name. All conditions
    are set: an absent one means ready to some readers only. There is no targetRef, since the activators are pods of
    another namespace.
    """
    return tuple(service_slices(llm, ACTIVATOR_SLICES, port, ((each.address, each.node) for each in activators)))


def service_slices(
    llm: Owner, suffixes: tuple[str, str], port: int, pods: Iterable[tuple[str, str]]
) -> Iterator[Manifest]:
    """EndpointSlices of the Service NAME with these pods, address and node of each: of IPv4 and IPv6, by the name
    suffixes."""
    by_family: dict[str, list[Manifest]] = {"IPv4": [], "IPv6": []}
    for address, node in pods:
        endpoint: Manifest = {
            "addresses": [address],
            "conditions": {"ready": True, "serving": True, "terminating": False},
        }
        by_family["IPv6" if ":" in address else "IPv4"].append(endpoint | ({"nodeName": node} if node else {}))
    for suffix, (family, endpoints) in zip(suffixes, by_family.items(), strict=True):
        if endpoints:
            meta = metadata(llm, llm.name + suffix)
            meta["labels"] = labels(llm) | {SERVICE_NAME_LABEL: llm.name, SLICE_MANAGER_LABEL: GROUP}
            yield {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": meta,
                "addressType": family,
                "endpoints": endpoints,
                "ports": [{"name": HTTP_PORT_NAME, "port": port, "protocol": "TCP", "appProtocol": "http"}],
            }


def disruption_budget(llm: LLMService, settings: Settings) -> Manifest | None:
    """The PodDisruptionBudget: maxUnavailable 1; pods that are not ready may always be evicted.

    None with one replica: a budget would block a node drain for ever.
    """
    if llm.spec.scaling.replicas <= 1:
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(llm, llm.name),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector(llm)},
        },
    }


def group_policy(llm: LLMService, settings: Settings) -> Manifest | None:
    """The NetworkPolicy of replicas over several nodes: what their pods tell each other is for them alone.

    vLLM's ranks talk on ports that the system chooses, without authentication: to others all ports are closed but
    those of clients, of probes and of declared sidecars. These it opens to everybody: policies of a namespace add up.
    """
    if llm.spec.parallelism.node_count == 1 or not (settings.has_groups and settings.has_group_policy):
        return None
    members = {"matchLabels": selector(llm), "matchExpressions": [{"key": RANK_LABEL, "operator": "Exists"}]}
    declared = {
        (port["containerPort"], port.get("protocol", "TCP"))
        for container in llm.spec.pod_template.spec.init_containers
        for port in container.get("ports") or ()
    }
    known = {(HTTP_PORT, "TCP"), (STATE_PORT, "TCP")}
    ports = [{"port": port, "protocol": protocol} for port, protocol in sorted(known | declared)]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(llm, llm.name),
        "spec": {
            "podSelector": members,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": members}]}, {"ports": ports}],
        },
    }


_POLLING_SECONDS = 15
"""Interval at which KEDA updates the ScaledObject's conditions."""
_FAILURES = 3
_COOLDOWN_SECONDS = 15
"""Until zero, once the scaler is inactive; the scaler itself measures the idle time. KEDA ignores this where something
else changed the number, and warns of it unless minReplicaCount is 0."""
_REMOVAL_SECONDS = 60
"""For each replica that is removed: its requests end before the next one goes."""


def why_no_scaled_object(llm: LLMService, settings: Settings) -> Reason | None:
    """Why KEDA does not scale this service; None: it does, or the spec does not ask for it."""
    if settings.scaler_address is None or settings.scaler_authentication is None:
        return Reason.AUTOSCALING_DISABLED
    if llm.replicas_stated_by is not None:
        return Reason.REPLICAS_STATED
    # KEDA would raise it to minReplicaCount, though a user set 0.
    is_users = llm.spec.scaling.replicas == 0 and not is_idle(llm.spec.scaling, llm.status)
    return Reason.SCALED_TO_ZERO if is_users else None


def scaled_object(llm: LLMService, settings: Settings) -> Manifest | None:
    """The ScaledObject, with which KEDA scales the LLMService to the scaler's number of replicas; None where KEDA does
    not scale it.

    KEDA's use of each field (kedacore/keda 2.21): `minReplicaCount` of 1 or more leaves all scaling to an HPA.
    `fallback` applies once the scaler failed more than `failureThreshold` times in a row; with currentReplicasIfHigher
    it never lowers the number. With `minReplicaCount` 0 KEDA sets 0 itself once the scaler is inactive for
    `cooldownPeriod`, and never after an error of the scaler, since `fallback.replicas` is not 0
    (pkg/scaling/executor/scale_scaledobjects.go, RequestScale). KEDA replaces the whole object to add its finalizer and
    label, and then writes `scalingModifiers: {}` and omits false fields: so the former is applied and the latter are
    not.
    """
    autoscaling = llm.spec.scaling.autoscaling
    if autoscaling is None or why_no_scaled_object(llm, settings) is not None:
        return None
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata(llm, llm.name),
        "spec": {
            "scaleTargetRef": {"apiVersion": API_VERSION, "kind": KIND, "name": llm.name},
            "minReplicaCount": autoscaling.lowest_minimum,
            "maxReplicaCount": autoscaling.highest_maximum,
            "pollingInterval": _POLLING_SECONDS,
            **({"cooldownPeriod": _COOLDOWN_SECONDS} if autoscaling.may_be_at_zero else {}),
            "fallback": {
                "failureThreshold": _FAILURES,
                "replicas": max(1, autoscaling.lowest_minimum),
                "behavior": "currentReplicasIfHigher",
            },
            "advanced": {
                "horizontalPodAutoscalerConfig": {"behavior": _behavior(autoscaling)},
                "scalingModifiers": {},
            },
            "triggers": [
                {
                    "type": "external-push",
                    "metricType": "AverageValue",
                    "metadata": {"scalerAddress": settings.scaler_address},
                    "authenticationRef": {
                        "name": settings.scaler_authentication,
                        "kind": "ClusterTriggerAuthentication",
                    },
                }
            ],
        },
    }


def _behavior(autoscaling: Autoscaling) -> dict[str, Any]:
    """Up at once and as far as needed, which is not an HPA's default; down one replica at a time.

    `selectPolicy` is the HPA's default, set because KEDA otherwise rewrites the HPA at each reconcile.
    """
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "selectPolicy": "Max",
            "policies": [{"type": "Pods", "value": autoscaling.highest_maximum, "periodSeconds": _POLLING_SECONDS}],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": autoscaling.scale_down.stabilization_seconds,
            "selectPolicy": "Max",
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": _REMOVAL_SECONDS}],
        },
    }


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim that the operator creates, for downloaded models or for the start cache."""

    name: str
    size: str
    storage_class_name: str | None
    access_modes: tuple[AccessMode, ...]
    is_retained: bool = False
    """It has no owner reference, and outlives the LLMService."""

    @property
    def mounted_by(self) -> str | None:
        """What may mount it at a time: "one node" or "one pod"; None: no limit."""
        if set(self.access_modes) - {"ReadWriteOnce", "ReadWriteOncePod"}:
            return None
        return "one node" if "ReadWriteOnce" in self.access_modes else "one pod"


def claims(llm: LLMService, asked: LLMServiceSpec) -> Iterator[Claim]:
    """Claims that the pods mount, and claims in the spec, which a rollback neither changes nor deletes."""
    mounted, wanted = ({claim.name: claim for claim in _claims(llm, spec)} for spec in (llm.spec, asked))
    yield from (mounted | wanted).values()


def _claims(llm: LLMService, spec: LLMServiceSpec) -> Iterator[Claim]:
    cache, start = spec.model.cache, spec.start_cache
    if cache.size is not None and cache.claim_name is None:
        name, modes = cache_claim_name(llm.name), tuple(cache.access_modes or ("ReadWriteOnce",))
        yield Claim(name, cache.size, cache.storage_class_name, modes, cache.is_retained)
    if start is not None:
        name, modes = start_cache_claim_name(llm.name), tuple(start.access_modes or ("ReadWriteOnce",))
        yield Claim(name, start.size, start.storage_class_name, modes)


def claim_holders(llm: LLMService) -> str | None:
    """What may mount all of the operator's claims at a time: "one node" or "one pod"; None: no limit."""
    limits = {claim.mounted_by for claim in _claims(llm, llm.spec)}
    return next((limit for limit in ("one pod", "one node") if limit in limits), None)


def claim_manifest(llm: LLMService, claim: Claim) -> Manifest:
    spec: Manifest = {"accessModes": list(claim.access_modes), "resources": {"requests": {"storage": claim.size}}}
    if claim.storage_class_name is not None:
        spec["storageClassName"] = claim.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(llm, claim.name, owned=not claim.is_retained),
        "spec": spec,
    }


Builder = Callable[[LLMService, Settings], Manifest | None]

BUILDERS: Mapping[str, Builder] = {
    "PodDisruptionBudget": disruption_budget,
    "NetworkPolicy": group_policy,
    "ScaledObject": scaled_object,
    "InferencePool": gateway.pool,
    "HTTPRoute": gateway.route,
}
"""By kind, those in `llmservice_api/constants.py`."""


def declared_manifests(service: LLMService, settings: Settings) -> Iterator[Manifest]:
    """Manifests of the kinds in CHILD_KINDS for this service, in their order."""
    for child in CHILD_KINDS:
        if (manifest := BUILDERS[child.kind](service, settings)) is not None:
            yield manifest
