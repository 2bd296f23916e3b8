"""What must be true once nothing strikes any more. Each check returns what is wrong, in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.chaos.actions import Desired
from tests.chaos.blows import Window
from tests.support.cluster import JSON, Cluster
from tests.support.operator import host_process, operator_pods
from tests.support.traffic import Traffic, in_words

CHILDREN = ("deployments", "services", "poddisruptionbudgets", "controllerrevisions", "persistentvolumeclaims", "jobs")
# By the words of the stand-in's failures; an engine that ends with 0 without a word has died.
REASONS: Mapping[str, frozenset[str]] = {
    "kv-cache-too-small": frozenset({"KVCacheTooSmall"}),
    "unsupported-architecture": frozenset({"UnsupportedArchitecture"}),
    "gpu-out-of-memory": frozenset({"GPUOutOfMemory"}),
    "exit-0": frozenset({"EngineDied", "StartupFailed", "CrashLoop"}),
}
# A container's limit in the chart is 512 MiB; at rest it takes about 100.
MEMORY_MIB = 300


def conditions(service: JSON) -> dict[str, JSON]:
    return {condition["type"]: condition for condition in service.get("status", {}).get("conditions", [])}


def unlike(cluster: Cluster, namespace: str, name: str, desired: Desired | None) -> str:
    """How the service differs from what its spec asks for; nothing when it does not."""
    service = cluster.get("llmservices", namespace, name)
    pods = cluster.list("pods", namespace, f"llmservice.dev/service={name}")
    if desired is None:
        left = [f"{plural}/{each['metadata']['name']}" for plural, each in _children(cluster, namespace, name)]
        left += [f"pods/{pod['metadata']['name']}" for pod in pods]
        return f"it is still there: {left}" if service is not None or left else ""
    if service is None:
        return "it is not there"
    status, seen = service.get("status", {}), conditions(service)
    if status.get("observedGeneration") != service["metadata"]["generation"]:
        return f"generation {service['metadata']['generation']} was not looked at: {status.get('observedGeneration')}"
    said = {kind: f"{each['status']} ({each['reason']})" for kind, each in sorted(seen.items())}
    wrong = _wrong(desired, seen, status, pods)
    return f"{wrong}; conditions {said}, failure {status.get('failure')}" if wrong else ""


def _wrong(desired: Desired, seen: Mapping[str, JSON], status: JSON, pods: Sequence[JSON]) -> str:
    """A spec that is refused or held changes nothing of what ran before; so nothing is asked of the pods then."""
    if desired.paused:
        return "" if any(each["reason"] == "Paused" for each in seen.values()) else "no condition says Paused"
    accepted = seen.get("Accepted", {}).get("status")
    if desired.unknown_flag:
        return "" if accepted == "False" else "an unknown flag was accepted"
    if accepted != "True":
        return "it was not accepted"
    if desired.fails and desired.replicas:
        reason = status.get("failure", {}).get("reason")
        return "" if reason in REASONS[desired.fails] else f"the failure should be one of {set(REASONS[desired.fails])}"
    if seen.get("Ready", {}).get("status") != "True":
        return "it is not Ready"
    ready = [pod for pod in pods if _is_ready(pod)]
    if not len(pods) == len(ready) == desired.replicas:
        return f"{desired.replicas} replicas are asked for; {len(pods)} pods, {len(ready)} ready"
    return ""


def _is_ready(pod: JSON) -> bool:
    found = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in found)


def _children(cluster: Cluster, namespace: str, name: str = "") -> Iterator[tuple[str, JSON]]:
    selector = f"llmservice.dev/service={name}" if name else "llmservice.dev/service"
    for plural in CHILDREN:
        for item in cluster.list(plural, namespace, selector):
            yield plural, item


def orphans(cluster: Cluster, namespace: str) -> list[str]:
    """Children whose owner is gone, or is another of the same name."""
    owners = {item["metadata"]["name"]: item["metadata"]["uid"] for item in cluster.list("llmservices", namespace)}
    found = []
    for plural, item in _children(cluster, namespace):
        metadata = item["metadata"]
        name = metadata["labels"]["llmservice.dev/service"]
        held_by = [owner["uid"] for owner in metadata.get("ownerReferences", [])]
        if owners.get(name) not in held_by:
            found.append(f"{plural}/{metadata['name']} of {name}: owners {held_by}, the service is {owners.get(name)}")
    return found


def stuck(cluster: Cluster, namespace: str) -> list[str]:
    """What is being deleted and does not go, and finalizers that nobody asked for."""
    kinds = ("llmservices", "pods", *CHILDREN)
    found = [(plural, item["metadata"]) for plural in kinds for item in cluster.list(plural, namespace)]
    deleted = [
        f"{plural}/{metadata['name']} since {metadata['deletionTimestamp']}, finalizers {metadata.get('finalizers')}"
        for plural, metadata in found
        if "deletionTimestamp" in metadata
    ]
    held = [
        f"llmservices/{metadata['name']}: finalizers {metadata['finalizers']}"
        for plural, metadata in found
        if plural == "llmservices" and metadata.get("finalizers")
    ]
    return deleted + held


def memory(cluster: Cluster) -> dict[str, float]:
    """Resident MiB of each of the operator's processes."""
    found = {}
    for pod in operator_pods(cluster):
        text = Path(f"/proc/{host_process(cluster, pod)}/status").read_text()
        resident = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert resident is not None
        found[str(pod["metadata"]["name"])] = round(int(resident.group(1)) / 1024, 1)
    return found


def lost_without_excuse(name: str, probe: Traffic, windows: Sequence[Window]) -> list[str]:
    """Lost requests that were not under way in any window of their service."""
    mine = [window for window in windows if window.name == name]
    lost = [row for row in probe.rows if not row.is_complete]
    return [
        f"{name}: {in_words(row)}"
        for row in lost
        if not any(row.sent <= window.ended and window.began <= row.ended for window in mine)
    ]
