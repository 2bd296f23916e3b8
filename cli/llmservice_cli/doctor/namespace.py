"""The namespace of services: limits, Pod Security, storage for caches, images, and the services themselves."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from llmservice_api.conditions import ConditionType
from llmservice_api.reasons import Reason
from llmservice_operator.manifests.server import helpers
from llmservice_operator.manifests.settings import Settings
from llmservice_planner.quantity import amount
from llmservice_planner.room import Quota
from llmservice_runtime.bounded_json import clean

from llmservice_cli.api import Json, container_statuses, labels_of, name_of
from llmservice_cli.doctor.facts import Facts
from llmservice_cli.doctor.operator import read_settings
from llmservice_cli.services import condition_of

from .facts import LONGEST, Check, Finding, names, ok, problem, warning

_CLASS_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_ENFORCE = "pod-security.kubernetes.io/enforce"
_PULL_FAILURES = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"})
_ONE_NODE = (
    "ebs",
    "aws-ebs",
    "pd.csi",
    "gce-pd",
    "disk.csi.azure",
    "azure-disk",
    "rbd",
    "cinder",
    "local",
    "host-path",
)
"""Parts of the names of provisioners whose volumes one node mounts at a time."""
_EXPLAINED = frozenset(map(str, Reason))
_HELPER_FIELDS = (
    ("cpu", "services.helperCpu", Decimal("0.001"), "m"),
    ("memory", "services.helperMemory", Decimal(1 << 20), "Mi"),
)
"""Resource, value of the chart, and the unit in which it is written."""
_CLAIM_BOUNDS = (("min", "at least"), ("max", "at most"))
_UNLIMITED = ("limits.cpu", "limits.memory")
"""Keys of a quota for which pods of services give nothing by default."""


def storage(facts: Facts) -> Iterator[Finding]:
    default = [each for each in facts.storage_classes if _is_default(each)]
    found = names(str(each["metadata"]["name"]) for each in facts.storage_classes) or "none"
    if not default:
        yield warning(
            f"no StorageClass is the default (there are: {found})",
            "name one in spec.model.cache.storageClassName, or mark one with the annotation " + _CLASS_DEFAULT,
        )
        return
    if len(default) > 1:
        several = names(str(each["metadata"]["name"]) for each in default)
        yield warning(f"several StorageClasses are the default: {several}", f"leave {_CLASS_DEFAULT} on one of them")
    for each in default:
        provisioner, mode = str(each.get("provisioner") or ""), each.get("volumeBindingMode") or "Immediate"
        shown = f"claims get {each['metadata']['name']} ({clean(provisioner)[:100]}, {mode})"
        zones = {labels_of(node).get("topology.kubernetes.io/zone") for node in facts.nodes} - {None}
        if mode == "Immediate" and len(zones) > 1:
            yield warning(
                f"{shown}: a volume is made before its pod is placed, in any of {len(zones)} zones",
                "use a class with volumeBindingMode: WaitForFirstConsumer for spec.model.cache",
            )
        elif any(part in provisioner for part in _ONE_NODE):
            yield ok(
                f"{shown}; one node at a time mounts its volumes",
                "a cache that replicas on several nodes share needs a class with ReadWriteMany (a file system)",
            )
        else:
            yield ok(shown)


def _is_default(storage_class: Json) -> bool:
    return bool((storage_class["metadata"].get("annotations") or {}).get(_CLASS_DEFAULT) == "true")


def quota(facts: Facts) -> Iterator[Finding]:
    """Quotas that are used up, or that ask for what pods of services do not say."""
    found = [read for each in facts.quotas if (read := Quota.from_object(each)) is not None]
    defaults = {f"limits.{resource}" for each in facts.limits for resource in _defaults(each)}
    for each in found:
        full = [key for key, hard in each.hard.items() if each.used.get(key, Decimal(0)) >= hard]
        if full:
            yield warning(
                f"ResourceQuota {each.name} in {facts.namespace} is used up: {names(full)}",
                "nothing more that counts against it is admitted: raise it, or scale something down",
            )
        wanted = [key for key in _UNLIMITED if key in each.hard and key not in defaults]
        if wanted:
            yield warning(
                f"ResourceQuota {each.name} in {facts.namespace} wants {names(wanted)} of every container, and pods of"
                " services have none by default",
                "add a LimitRange with a default for it, or set spec.runtime.resources.limits in each service",
            )
        if not full and not wanted:
            yield ok(f"ResourceQuota {each.name} in {facts.namespace} has room")
    if not found:
        yield ok(f"no ResourceQuota limits {facts.namespace}")


def _defaults(limit_range: Json) -> Iterator[str]:
    """Resources for which containers get a limit."""
    for item in (limit_range.get("spec") or {}).get("limits") or ():
        if item.get("type") == "Container":
            yield from item.get("default") or ()


def limit_range(facts: Facts) -> Iterator[Finding]:
    """Bounds that refuse every pod of a service, and defaults that its server gets without asking for them."""
    settings = next(iter(read_settings(facts)), Settings())
    every = [item for each in facts.limits for item in (each.get("spec") or {}).get("limits") or ()]
    remedies = _remedies([item for item in every if item.get("type") == "Container"], settings)
    is_quiet = True
    for each in facts.limits:
        where = f"LimitRange {clean(str(each['metadata']['name']))[:LONGEST]} in {facts.namespace}"
        for item in (each.get("spec") or {}).get("limits") or ():
            found = tuple(_of_pods(where, item)) if item.get("type") == "Pod" else ()
            if item.get("type") == "Container":
                found = (*_of_helpers(where, item, settings, remedies), *_of_server(where, item, settings))
            if item.get("type") == "PersistentVolumeClaim":
                found = tuple(_of_claims(where, item))
            for finding in found:
                is_quiet = False
                yield finding
    if is_quiet:
        yield ok(f"no LimitRange in {facts.namespace} refuses pods of services")


def _of_helpers(where: str, item: Json, settings: Settings, remedies: Mapping[str, str]) -> Iterator[Finding]:
    """The operator's containers have requests and limits of their own. One finding for each bound."""
    least, most, ratios = (item.get(bound) or {} for bound in ("min", "max", "maxLimitRequestRatio"))
    for resource, remedy in remedies.items():
        own = [(name, each["requests"][resource], each["limits"][resource]) for name, each in helpers(settings).items()]
        below = [one for one in own if resource in least and _exceeds(least[resource], one[1])]
        above = [one for one in own if resource in ratios and _is_ratio_above(one[2], one[1], ratios[resource])]
        beyond = [one for one in own if resource in most and _exceeds(one[2], most[resource])]
        for name, request, _ in below[:1]:
            yield problem(
                f"{where} wants at least {_shown_amount(least[resource])} {resource} of every container; {name}"
                f" requests {request}",
                f"{remedy}, or lower its min",
            )
        for name, request, limit in above[:1]:
            yield problem(
                f"{where} has a maxLimitRequestRatio of {_shown_amount(ratios[resource])} for {resource}; of {name}"
                f" the limit is {limit} and the request {request}",
                f"{remedy}, or raise its ratio",
            )
        for name, _, limit in beyond[:1]:
            yield problem(
                f"{where} allows at most {_shown_amount(most[resource])} {resource} for a container; the limit of"
                f" {name} is {limit}",
                "raise its max; the limits of fetch are services.fetchCpu and services.fetchMemoryGib",
            )


def _remedies(items: Sequence[Json], settings: Settings) -> dict[str, str]:
    """By resource: the request of the operator's containers that meets all bounds, or that none does."""
    found = {}
    for resource, field, unit, suffix in _HELPER_FIELDS:
        limits = [amount(each["limits"][resource]) for each in helpers(settings).values()]
        ratios = [ratio for ratio in _bounds(items, "maxLimitRequestRatio", resource) if ratio > 0]
        least = _bounds(items, "min", resource)
        needed = max([*least, *(limit / ratio for limit in limits for ratio in ratios)], default=Decimal(0))
        shown = f"{math.ceil(needed / unit)}{suffix}"
        most = min(_bounds(items, "max", resource), default=None)
        found[resource] = f"set {field} in the chart's values to {shown}, which meets all of its bounds"
        if most is not None and needed > most:
            at_most = f"{int(most / unit)}{suffix}"
            found[resource] = f"no {field} meets all bounds: it needs {shown}, and the max is {at_most}; raise that"
    return found


def _bounds(items: Sequence[Json], bound: str, resource: str) -> list[Decimal]:
    """What the limits of containers say of a resource, as far as they are numbers."""
    found = []
    for item in items:
        with contextlib.suppress(ValueError):
            if resource in (item.get(bound) or {}):
                found.append(amount(str(item[bound][resource])))
    return found


def _of_server(where: str, item: Json, settings: Settings) -> Iterator[Finding]:
    """It has no limit of CPU and memory by default, and gets one; a max alone is a default too."""
    defaults = {**(item.get("max") or {}), **(item.get("default") or {})}
    asked = {"cpu": str(settings.cpu_per_gpu), "memory": f"{settings.memory_gib_per_gpu}Gi"}
    does = {"cpu": "slows the server down", "memory": "ends the server where it needs more"}
    for resource in asked:
        remedy = f"set spec.runtime.resources.limits.{resource} in services, or take the default out"
        if resource not in defaults:
            if resource in (item.get("maxLimitRequestRatio") or {}):
                yield warning(f"{where} wants a limit of {resource}, and servers have none by default", remedy)
            continue
        limit = _shown_amount(defaults[resource])
        what = f"{where} limits containers without a limit to {limit} {resource.replace('cpu', 'CPU')}"
        if _exceeds(asked[resource], defaults[resource]):
            refused = f"a server requests {asked[resource]} per GPU by default, and its pod is refused"
            yield warning(f"{what}: {refused}", remedy)
        else:
            yield warning(f"{what}: it {does[resource]}", remedy)


def _of_pods(where: str, item: Json) -> Iterator[Finding]:
    bounds = [
        f"{bound} {names(sorted(map(str, item[bound])))}"
        for bound in ("max", "maxLimitRequestRatio")
        if item.get(bound)
    ]
    if bounds:
        yield warning(
            f"{where} bounds whole pods ({'; '.join(bounds)}): it refuses a pod with a container without a limit",
            "set spec.runtime.resources.limits in services so that the pod stays within it",
        )


def _of_claims(where: str, item: Json) -> Iterator[Finding]:
    """Caches are claims."""
    stated = [(words, (item.get(bound) or {}).get("storage")) for bound, words in _CLAIM_BOUNDS]
    bounds = [f"{words} {_shown_amount(value)}" for words, value in stated if value is not None]
    if bounds:
        yield warning(
            f"{where} wants {' and '.join(bounds)} of storage of every claim, and refuses other caches",
            "set spec.model.cache.size in services within these bounds, or change them",
        )


def _shown_amount(value: object) -> str:
    return clean(str(value))[:LONGEST]


def _is_ratio_above(limit: str, request: str, ratio: object) -> bool:
    try:
        return amount(limit) > amount(request) * amount(str(ratio))
    except ValueError:
        return False


def _exceeds(one: Any, other: Any) -> bool:
    try:
        return amount(str(one)) > amount(str(other))
    except ValueError:
        return False


def pod_security(facts: Facts) -> Iterator[Finding]:
    """Pods of services meet `restricted`, as long as their podTemplate asks for nothing more."""
    if not facts.namespaces:
        yield warning(f"there is no namespace {facts.namespace}", f"kubectl create namespace {facts.namespace}")
        return
    level = labels_of(facts.namespaces[0]).get(_ENFORCE, "privileged")
    if facts.namespaces[0]["metadata"].get("deletionTimestamp"):
        yield problem(f"the namespace {facts.namespace} is being deleted", "use another one, or wait until it is gone")
    beyond = [name_of(each) for each in facts.services if _is_beyond(each, facts.namespace)]
    if beyond and level != "privileged":
        yield warning(
            f"{facts.namespace} enforces Pod Security {level}, and these services ask for host paths or root:"
            f" {names(beyond)}",
            "take that out of spec.podTemplate, or serve them from a namespace with a lower level",
        )
    else:
        yield ok(f"{facts.namespace} enforces Pod Security {level}; pods of services meet restricted")


def _is_beyond(service: Json, namespace: str) -> bool:
    if service["metadata"]["namespace"] != namespace:
        return False
    pod = ((service.get("spec") or {}).get("podTemplate") or {}).get("spec") or {}
    is_root = (pod.get("securityContext") or {}).get("runAsNonRoot") is False
    return is_root or any("hostPath" in volume for volume in pod.get("volumes") or ())


def images(facts: Facts) -> Iterator[Finding]:
    """Images that nodes try to pull now and cannot. Secrets are not read: whether one would do is not known."""
    failing: dict[str, tuple[str, str, list[str]]] = {}
    pods = (*facts.operator_pods, *facts.activator_pods, *facts.pods)
    for pod in pods:
        for one in container_statuses(pod):
            waiting = (one.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in _PULL_FAILURES:
                image = clean(str(one.get("image") or ""))[:LONGEST]
                message = clean(str(waiting.get("message") or waiting["reason"]))[:LONGEST]
                failing.setdefault(image, (message, _secrets(pod), []))[2].append(name_of(pod))
    for image, (message, secrets, on) in failing.items():
        yield problem(
            f"{image} cannot be pulled for {names(on)}: {message} (pull secrets: {secrets})",
            "correct the image's name, make the registry reachable from nodes, or name a pull secret of the pod's"
            " namespace (imagePullSecrets of the chart, spec.runtime.imagePullSecrets of a service)",
        )
    if not failing:
        yield ok(f"no image of {len(pods)} pods fails to be pulled")


def _secrets(pod: Json) -> str:
    return names(str(each.get("name")) for each in (pod.get("spec") or {}).get("imagePullSecrets") or ()) or "none"


def services(facts: Facts) -> Iterator[Finding]:
    """How many are not Ready, by reason."""
    reasons: dict[str, list[str]] = {}
    settled = Counter[str]()
    for each in facts.services:
        found = condition_of(each, ConditionType.READY)
        if found is None:
            reasons.setdefault("no status yet", []).append(name_of(each))
        elif found.status == "True":
            settled[found.reason] += 1
        else:
            reasons.setdefault(_shown(found.reason), []).append(name_of(each))
    for reason, which in sorted(reasons.items(), key=lambda one: -len(one[1])):
        first = which[0].partition("/")
        yield warning(
            f"not Ready, {reason} ({len(which)}): {names(which)}",
            f"llmservice status {first[2]} -n {first[0]}"
            + (f"; llmservice explain {reason}" if reason in _EXPLAINED else ""),
        )
    if settled or not reasons:
        yield ok(f"{sum(settled.values())} of {len(facts.services)} LLMServices are Ready")


def _shown(reason: str) -> str:
    """One that `explain` knows as it is; anything else is what somebody wrote into a status."""
    return reason if reason in _EXPLAINED else repr(clean(reason)[:60])


CHECKS = (
    Check(
        "storage", "a default StorageClass, when it binds, and who can share its volumes", ("storage_classes",), storage
    ),
    Check(
        "quota", "ResourceQuotas that are used up, or want limits that pods do not have", ("quotas", "limits"), quota
    ),
    Check("limit range", "LimitRanges that refuse, slow down or end pods of services", ("limits",), limit_range),
    Check("pod security", "the namespace's Pod Security level against what pods need", ("namespaces",), pod_security),
    Check("images", "images of the operator and of services that cannot be pulled", ("operator_pods", "pods"), images),
    Check("services", "LLMServices that are not Ready, by reason", ("services",), services, True),
)
