"""Whether what a service has is what its spec asks for, and whether somebody has what there is. Pure.

The cluster comes in as lists of its objects by kind; each answer says what is wrong, in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmservice_api.constants import REVISION_LABEL, SERVICE_LABEL
from llmservice_runtime.contract import SERVER_CONTAINER

from tests.chaos.actions import Desired
from tests.support.cluster import is_ready

JSON = dict[str, Any]
Found = Mapping[str, Sequence[JSON]]
"""Everything of the kinds below in the namespace, by plural."""

CHILDREN = (
    "deployments",
    "services",
    "configmaps",
    "poddisruptionbudgets",
    "controllerrevisions",
    "persistentvolumeclaims",
    "jobs",
)
# What Kubernetes makes of the children, and whose it is.
CHILD_RESOURCES = {"replicasets": "deployments", "pods": "replicasets", "endpointslices": "services"}
KINDS = ("llmservices", *CHILDREN, *CHILD_RESOURCES)


def of(name: str, plural: str, found: Found) -> list[JSON]:
    """Those that carry the service's label."""
    return [item for item in found[plural] if item["metadata"].get("labels", {}).get(SERVICE_LABEL) == name]


def left(name: str, found: Found) -> list[str]:
    """What there still is of a service that is to be gone."""
    service = [f"llmservices/{name}" for item in found["llmservices"] if item["metadata"]["name"] == name]
    kinds = (*CHILDREN, *CHILD_RESOURCES)
    return service + [f"{plural}/{item['metadata']['name']}" for plural in kinds for item in of(name, plural, found)]


def taken_over(name: str, found: Found, by: str) -> list[str]:
    """Orphans of the service's name that somebody edited before they were adopted: they are not taken from him."""
    return [
        f"{plural}/{item['metadata']['name']}"
        for plural in CHILDREN
        for item in of(name, plural, found)
        if not item["metadata"].get("ownerReferences")
        and any(entry["manager"] == by for entry in item["metadata"]["managedFields"])
    ]


def unlike(name: str, desired: Desired, found: Found) -> str:
    """How children and pods differ from a spec that was accepted and is not held; nothing when they do not."""
    checks = (_deployment, _service, _budget, _pods)
    return next((wrong for check in checks if (wrong := check(name, desired, found))), "")


def _deployment(name: str, desired: Desired, found: Found) -> str:
    live = _only(name, "deployments", found)
    if live is None:
        return "there is no Deployment"
    spec, template = live["spec"], live["spec"]["template"]
    if (spec["replicas"], spec.get("paused", False)) != (desired.replicas, False):
        return f"the Deployment has {spec['replicas']} replicas and paused={spec.get('paused', False)}"
    if spec["revisionHistoryLimit"] != 2:
        return f"the Deployment's revisionHistoryLimit is {spec['revisionHistoryLimit']}"
    label = template["metadata"]["labels"].get(REVISION_LABEL)
    records = of(name, "controllerrevisions", found)
    record = next((each for each in records if each["metadata"]["labels"].get(REVISION_LABEL) == label), None)
    if record is None:
        return f"there is no record of revision {label}"
    grace, recorded = (each["spec"]["terminationGracePeriodSeconds"] for each in (template, record["data"]["template"]))
    if grace != recorded:
        return f"the Deployment's grace period is {grace} s, its record's {recorded} s"
    return _asked_otherwise("the Deployment", template["spec"], name, desired)


def _asked_otherwise(whose: str, pod: JSON, name: str, desired: Desired) -> str:
    """Arguments and environment of the server, as far as a run changes them."""
    server = next(each for each in pod["containers"] if each["name"] == SERVER_CONTAINER)
    args = server["args"]
    at = args.index("--max-num-seqs") + 1 if "--max-num-seqs" in args else len(args)
    if args[at : at + 1] != [str(desired.max_num_seqs)]:
        return f"{whose} has --max-num-seqs {args[at : at + 1]}, not {desired.max_num_seqs}"
    wanted = desired.manifest(name)["spec"].get("runtime", {}).get("env", [])
    lacks = [each for each in wanted if each not in server.get("env", [])]
    return f"{whose} lacks {lacks}" if lacks else ""


def _service(name: str, desired: Desired, found: Found) -> str:
    live = _only(name, "services", found)
    if live is None:
        return "there is no Service"
    spec = live["spec"]
    if spec.get("selector") != {SERVICE_LABEL: name}:
        return f"the Service selects {spec.get('selector')}"
    return "the Service publishes addresses that are not ready" if spec.get("publishNotReadyAddresses") else ""


def _budget(name: str, desired: Desired, found: Found) -> str:
    live = _only(name, "poddisruptionbudgets", found)
    if desired.replicas < 2:
        return "there is a budget for one replica" if live is not None else ""
    if live is None:
        return "there is no PodDisruptionBudget"
    spec = live["spec"]
    allows = (spec.get("maxUnavailable"), spec.get("minAvailable"), spec["selector"].get("matchLabels"))
    return "" if allows == (1, None, {SERVICE_LABEL: name}) else f"the PodDisruptionBudget is {spec}"


def _pods(name: str, desired: Desired, found: Found) -> str:
    """Where a start fails, pods of the revision before go on."""
    if desired.fails:
        return ""
    pods = of(name, "pods", found)
    ready = [pod for pod in pods if is_ready(pod)]
    if not len(pods) == len(ready) == desired.replicas:
        return f"{desired.replicas} replicas are asked for; {len(pods)} pods, {len(ready)} ready"
    others = (_asked_otherwise(f"pod {pod['metadata']['name']}", pod["spec"], name, desired) for pod in pods)
    return next((wrong for wrong in others if wrong), "")


def _only(name: str, plural: str, found: Found) -> JSON | None:
    return next((item for item in found[plural] if item["metadata"]["name"] == name), None)


def orphans(found: Found) -> list[str]:
    """What carries a service's label, and whose owner is gone or is another of the same name."""
    uids = {plural: {item["metadata"]["uid"] for item in found[plural]} for plural in found}
    services = {item["metadata"]["name"]: {item["metadata"]["uid"]} for item in found["llmservices"]}
    lost = []
    for plural in (*CHILDREN, *CHILD_RESOURCES):
        for item in found[plural]:
            metadata = item["metadata"]
            name = metadata.get("labels", {}).get(SERVICE_LABEL)
            if name is None:
                continue
            held_by = {owner["uid"] for owner in metadata.get("ownerReferences", [])}
            owners = uids[CHILD_RESOURCES[plural]] if plural in CHILD_RESOURCES else services.get(name, set())
            if not held_by & owners:
                lost.append(f"{plural}/{metadata['name']} of {name}: its owners {sorted(held_by)} are not there")
    return lost


def stuck(found: Found) -> list[str]:
    """What is being deleted and does not go, and finalizers that nobody asked for."""
    metadata = [(plural, item["metadata"]) for plural in KINDS for item in found[plural]]
    deleted = [
        f"{plural}/{each['name']} since {each['deletionTimestamp']}, finalizers {each.get('finalizers')}"
        for plural, each in metadata
        if "deletionTimestamp" in each
    ]
    held = [
        f"llmservices/{each['name']}: finalizers {each['finalizers']}"
        for plural, each in metadata
        if plural == "llmservices" and each.get("finalizers")
    ]
    return deleted + held
