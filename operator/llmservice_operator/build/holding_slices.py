"""The EndpointSlices that send a service's requests to the activators while no replica serves.

The Service keeps its selector; kube-proxy adds the endpoints of all slices that carry the Service's name. Every
condition is stated: what is absent means ready to some readers and not to others. There is no targetRef, since the
activators are pods of another namespace.
"""

from __future__ import annotations

from llmservice_runtime.contract import HTTP_PORT_NAME

from llmservice_operator.api.constants import GROUP
from llmservice_operator.api.holding import ACTIVATOR_SLICES, SERVICE_NAME_LABEL, SLICE_MANAGER_LABEL, Activator
from llmservice_operator.build.meta import Manifest, Owner, labels, metadata


def manifests(llm: Owner, port: int, activators: tuple[Activator, ...]) -> tuple[Manifest, ...]:
    """One for each family of addresses that there is."""
    families = {"IPv4": [], "IPv6": []}  # type: dict[str, list[Activator]]
    for activator in activators:
        families["IPv6" if activator.is_ipv6 else "IPv4"].append(activator)
    return tuple(
        _manifest(llm, suffix, family, port, some)
        for suffix, (family, some) in zip(ACTIVATOR_SLICES, families.items(), strict=True)
        if some
    )


def _manifest(llm: Owner, suffix: str, family: str, port: int, activators: list[Activator]) -> Manifest:
    meta = metadata(llm, llm.name + suffix)
    meta["labels"] = labels(llm) | {SERVICE_NAME_LABEL: llm.name, SLICE_MANAGER_LABEL: GROUP}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": meta,
        "addressType": family,
        "endpoints": [_endpoint(each) for each in activators],
        "ports": [{"name": HTTP_PORT_NAME, "port": port, "protocol": "TCP", "appProtocol": "http"}],
    }


def _endpoint(activator: Activator) -> Manifest:
    endpoint: Manifest = {
        "addresses": [activator.address],
        "conditions": {"ready": True, "serving": True, "terminating": False},
    }
    return endpoint | ({"nodeName": activator.node} if activator.node else {})
