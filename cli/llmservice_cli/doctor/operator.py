"""What the chart installs: the CRD, the operator's Deployment, pods, Lease and settings, the activators; and KEDA."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from llmservice_api.constants import CRD_NAME, VERSION
from llmservice_api.crd import schema
from llmservice_operator.manifests.settings import InvalidSettings, Settings
from llmservice_runtime.bounded_json import clean

from llmservice_cli.api import Json, container_statuses, labels_of, name_of, nodes_of, status_of
from llmservice_cli.doctor.facts import Facts, Objects, images_of
from llmservice_cli.installation import VERSION_LABEL
from llmservice_cli.settings import of_config_map
from llmservice_cli.text import duration

from .facts import LONGEST, Check, Finding, names, not_known, ok, problem, version_of, warning

CRD_VERSION = "llmservice.dev/crd-version"
STALE_SECONDS = 30.0
"""A Lease is renewed every two seconds; a standby takes over after 10."""
KEDA_CRD = "scaledobjects.keda.sh"
LWS_CRD = "leaderworkersets.leaderworkerset.x-k8s.io"
OLDEST_KEDA = (2, 21)
OLDEST_WITH_CLAIMS = (1, 34)
_HEALTH = "health"
"""The port of /healthz and /readyz in the chart's Deployment."""
_LOGS = "kubectl logs -n {0} deployment/{1}"


def deployment(facts: Facts) -> Iterator[Finding]:
    if not facts.operators:
        yield problem(
            "no Deployment of the operator is found, by the chart's label",
            "install it (docs/install.md); until then nothing acts on LLMServices",
        )
    for each in facts.operators:
        yield from _ready(each, facts.operator_pods, "LLMServices change only once it is")


def _ready(each: Json, pods: Objects, consequence: str) -> Iterator[Finding]:
    """Of one Deployment, with why its pods are not ready."""
    namespace, name = each["metadata"]["namespace"], each["metadata"]["name"]
    wanted, ready = int(each["spec"].get("replicas", 1)), int(status_of(each).get("readyReplicas") or 0)
    if wanted == 0:
        yield problem(
            f"{name_of(each)} is scaled to 0; {consequence}",
            f"kubectl scale -n {namespace} deployment/{name} --replicas=1",
        )
        return
    if ready >= wanted:
        yield ok(f"{name_of(each)}: {ready}/{wanted} replicas ready")
        return
    own = [pod for pod in pods if pod["metadata"]["namespace"] == namespace]
    why = names(_reasons(pod) for pod in own if _reasons(pod))
    remedies = [_LOGS.format(namespace, name), f"kubectl describe pods -n {namespace}"]
    remedies += [f"{command} names missing rights" for command in _readyz(each, own)]
    make = warning if ready else problem
    yield make(
        f"{name_of(each)}: {ready}/{wanted} replicas ready{f': {why}' if why else ''}; {consequence}",
        "; ".join(remedies),
    )


def _readyz(operator: Json, pods: Iterable[Json]) -> Iterator[str]:
    """What asks the first pod that runs and is not ready."""
    containers = operator["spec"].get("template", {}).get("spec", {}).get("containers") or ()
    ports = [port for one in containers for port in one.get("ports") or () if port.get("name") == _HEALTH]
    for pod in pods:
        is_running = status_of(pod).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        if ports and is_running and not _reasons(pod) and not _is_true(pod, "Ready"):
            path = f"pods/{pod['metadata']['name']}:{ports[0]['containerPort']}/proxy/readyz"
            yield f"kubectl get --raw /api/v1/namespaces/{pod['metadata']['namespace']}/{path}"
            return


def _is_true(pod: Json, kind: str) -> bool:
    found = (one for one in status_of(pod).get("conditions") or () if one.get("type") == kind)
    return any(one.get("status") == "True" for one in found)


def _reasons(pod: Json) -> str:
    """What keeps a pod's containers waiting, or why no node takes it."""
    status = status_of(pod)
    waiting = [
        reason
        for one in container_statuses(pod)
        if (reason := ((one.get("state") or {}).get("waiting") or {}).get("reason"))
    ]
    unscheduled = [
        f"{one.get('reason')}: {clean(str(one.get('message') or ''))[:LONGEST]}"
        for one in status.get("conditions") or ()
        if one.get("type") == "PodScheduled" and one.get("status") == "False"
    ]
    return names([*waiting, *unscheduled])


def versions(facts: Facts) -> Iterator[Finding]:
    """The operator's, this program's, and the CRD's where it may be read."""
    for each in facts.operators:
        installed = clean(labels_of(each).get(VERSION_LABEL, ""))[:60]
        shown = f"{name_of(each)} is of version {installed}, image {names(images_of(each))}"
        if not installed:
            yield not_known(f"{name_of(each)} has no label {VERSION_LABEL}", "install it with the chart")
        elif installed != facts.program:
            yield warning(
                f"{shown}; this program is of version {facts.program}: plan, render and diff may differ from it",
                "use the program of the operator's version, or upgrade the operator (docs/install.md)",
            )
        else:
            yield ok(f"{shown}, as this program")
        for crd in facts.crd:
            of_crd = clean(str((crd["metadata"].get("annotations") or {}).get(CRD_VERSION) or ""))[:60]
            if of_crd and _order(of_crd) < _order(installed):
                yield problem(
                    f"the CRD is of version {of_crd}, older than {shown}",
                    "upgrade the chart's release with crds.install, or apply the CRD of the operator's version",
                )


def _order(text: str) -> tuple[int, ...]:
    return tuple(int(number[:9]) for number in re.findall(r"\d+", text, re.ASCII)[:3])


def lease(facts: Facts) -> Iterator[Finding]:
    if not facts.leases and facts.operators:
        yield problem(
            "no Lease of the operator is found: it has never led", "see its log and /readyz for missing rights"
        )
    for each in facts.leases:
        spec = each.get("spec") or {}
        holder, age = clean(str(spec.get("holderIdentity") or ""))[:LONGEST], _seconds(spec.get("renewTime"), facts.now)
        where = f"the Lease {name_of(each)}"
        if not holder:
            yield problem(f"{where} is held by nobody: nothing is reconciled", "see why no operator runs")
        elif age is None:
            yield not_known(f"{where}, held by {holder}, has no time of renewal", "see the operator's log")
        elif age > STALE_SECONDS:
            yield problem(
                f"{where}, held by {holder}, was renewed {duration(age)} ago: nothing is reconciled",
                "see whether that pod runs and reaches the API server",
            )
        else:
            yield ok(f"{where} is held by {holder} and was renewed {duration(age)} ago")


def _seconds(stamp: Any, now: datetime) -> float | None:
    try:
        return (now - datetime.fromisoformat(stamp).astimezone(UTC)).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None


def settings(facts: Facts) -> Iterator[Finding]:
    if not facts.settings:
        yield warning("no settings of an operator are found, by the chart's label", "install it with the chart")
    for each in facts.settings:
        try:
            of_config_map(each)
        except InvalidSettings as invalid:
            yield problem(
                f"ConfigMap {name_of(each)}: {clean(str(invalid))[:LONGEST]}",
                "correct the chart's values and upgrade: the operator does not start with it",
            )
        else:
            yield ok(f"ConfigMap {name_of(each)} is valid")


def read_settings(facts: Facts) -> tuple[Settings, ...]:
    """Those that are valid."""
    found = []
    for each in facts.settings:
        try:
            found.append(of_config_map(each))
        except InvalidSettings:  # the check `settings` reports it
            continue
    return tuple(found)


def activator(facts: Facts) -> Iterator[Finding]:
    is_enabled = any(each.scaler_address for each in read_settings(facts)) or bool(facts.activators)
    if not is_enabled:
        autoscaled = [name_of(each) for each in facts.services if _is_autoscaled(each)]
        if autoscaled:
            yield problem(
                f"these services ask for autoscaling, which is not enabled: {names(autoscaled)}",
                "install KEDA and set autoscaling.enabled in the chart's values (docs/serving/scaling.md)",
            )
        else:
            yield ok("autoscaling is not enabled, and no service asks for it")
        return
    if not facts.activators:
        yield problem(
            "autoscaling is enabled, and no Deployment of the activator is found", "upgrade the chart's release"
        )
    operator_images = {image for each in facts.operators for image in images_of(each)}
    for each in facts.activators:
        yield from _ready(each, facts.activator_pods, "without it nothing is scaled, and no request is held")
        others = {*images_of(each)} - operator_images
        if others and operator_images:
            yield warning(
                f"{name_of(each)} runs {names(sorted(others))}, the operator {names(sorted(operator_images))}",
                "upgrade the chart's release: one release has one image for both",
            )


def keda(facts: Facts) -> Iterator[Finding]:
    is_enabled = any(each.scaler_address for each in read_settings(facts)) or bool(facts.activators)
    if not is_enabled:
        yield ok("not needed: autoscaling is not enabled")
        return
    if not facts.keda_crd:
        yield problem(f"the CRD {KEDA_CRD} is not installed", "install KEDA 2.21 or later, or disable autoscaling")
        return
    served = [each["name"] for each in facts.keda_crd[0]["spec"].get("versions") or () if each.get("served")]
    if "v1alpha1" not in served:
        yield problem(
            f"{KEDA_CRD} serves {names(served)} and not v1alpha1, which the operator writes",
            "install KEDA 2.21 or later",
        )
    if not facts.keda:
        yield warning(
            "no Deployment of KEDA's operator is found, by its label", "see whether KEDA runs: nothing is scaled"
        )
    for each in facts.keda:
        yield from _ready(each, (), "without it nothing is scaled")
        found = version_of(labels_of(each).get(VERSION_LABEL, ""))
        if found is not None and found < OLDEST_KEDA:
            yield warning(f"KEDA {found[0]}.{found[1]} is older than 2.21", "upgrade KEDA to 2.21 or later")


def groups(facts: Facts) -> Iterator[Finding]:
    wide = [name_of(each) for each in facts.services if nodes_of(each) > 1]
    is_enabled = any(each.has_groups for each in read_settings(facts))
    if not (wide or is_enabled):
        yield ok("not needed: groups are not enabled, and no service is spread over several nodes")
        return
    if not is_enabled:
        yield problem(
            f"these services are spread over several nodes, which is not enabled: {names(wide)}",
            "install LeaderWorkerSet and set groups.enabled in the chart's values (docs/serving/several-nodes.md)",
        )
    if not facts.lws_crd:
        yield problem(f"the CRD {LWS_CRD} is not installed", "install LeaderWorkerSet 0.9, or disable groups")
        return
    served = [each["name"] for each in facts.lws_crd[0]["spec"].get("versions") or () if each.get("served")]
    if "v1" not in served:
        yield problem(
            f"{LWS_CRD} serves {names(served)} and not v1, which the operator writes", "install LeaderWorkerSet 0.9"
        )
    elif is_enabled:
        yield ok(f"groups are enabled, and {LWS_CRD} serves v1")


def dynamic_resources(facts: Facts) -> Iterator[Finding]:
    claiming = {name_of(each): claimed for each in facts.services if (claimed := _claims(each))}
    is_enabled = any(each.has_dynamic_resources for each in read_settings(facts))
    if not (claiming or is_enabled):
        yield ok("not needed: dynamic resources are not enabled, and no service claims devices")
        return
    if claiming and not is_enabled:
        yield problem(
            f"these services claim devices, which is not enabled: {names(claiming)}",
            "set dynamicResources.enabled in the chart's values (docs/serving/dynamic-resources.md)",
        )
    version = version_of(facts.kubernetes)
    if version is not None and version < OLDEST_WITH_CLAIMS:
        yield problem(
            f"Kubernetes {facts.kubernetes} does not serve resource.k8s.io/v1",
            "upgrade to Kubernetes 1.34 or later; until then services ask for a device plugin's resource",
        )
        return
    known = {str(each["metadata"]["name"]) for each in facts.device_classes}
    asked = {name for claimed in claiming.values() if (name := (claimed.get("claim") or {}).get("deviceClass"))}
    if missing := asked - known:
        yield problem(
            f"no DeviceClass of this name is there: {names(sorted(missing))}",
            "install the driver of the devices, or correct spec.accelerator.claim.deviceClass",
        )
    elif not known:
        yield warning("there is no DeviceClass", "install a driver of devices, such as NVIDIA's or AMD's")
    elif is_enabled:
        yield ok(f"dynamic resources are enabled, and there are DeviceClasses: {names(sorted(known))}")


def _claims(service: Json) -> Json:
    """spec.accelerator where it claims devices; else empty."""
    found = (service.get("spec") or {}).get("accelerator")
    return found if isinstance(found, dict) and (found.get("claim") or found.get("resourceClaims")) else {}


def _is_autoscaled(service: Json) -> bool:
    return bool(((service.get("spec") or {}).get("scaling") or {}).get("autoscaling"))


# The CRD in the cluster against the one that this program was built with.

_INSTALL = "upgrade the chart's release, or: kubectl apply --server-side -f crds/llmservices.llmservice.dev.yaml"
_DEEPEST = 64


def crd(facts: Facts) -> Iterator[Finding]:
    if not facts.crd:
        yield problem(f"the CRD {CRD_NAME} is not installed", _INSTALL)
        return
    found = facts.crd[0]
    said = (found["metadata"].get("annotations") or {}).get(CRD_VERSION)
    shown = f"{CRD_NAME} of version {clean(said)[:60]}" if said else f"{CRD_NAME}, installed without the chart"
    established = {each.get("type"): each.get("status") for each in status_of(found).get("conditions") or ()}
    if established.get("Established") != "True":
        yield problem(
            f"{shown} is not established: the API server serves no LLMServices", f"kubectl describe crd {CRD_NAME}"
        )
    others = [one for one in status_of(found).get("storedVersions") or () if one != VERSION]
    if others:
        yield warning(
            f"{shown}: objects may be stored in {names(others)}, which this version does not have",
            f"write each LLMService again, then take the others out of status.storedVersions of {CRD_NAME}",
        )
    yield _compared(shown, _schema_of(found), facts.program)


def _schema_of(found: Json) -> Mapping[str, Any] | None:
    for each in found["spec"].get("versions") or ():
        if each.get("name") == VERSION and each.get("served"):
            schema_found: Mapping[str, Any] = (each.get("schema") or {}).get("openAPIV3Schema") or {}
            return schema_found
    return None


def _compared(shown: str, live: Mapping[str, Any] | None, program: str) -> Finding:
    if live is None:
        return problem(f"{shown} does not serve {VERSION}", _INSTALL)
    own = _own()
    if live == own:
        return ok(f"{shown} has the fields and rules of this program ({program})")
    there, here = set(fields(live)), set(fields(own))
    if missing := sorted(here - there):
        return problem(f"{shown} lacks fields of version {program}, which are dropped: {names(missing)}", _INSTALL)
    if more := sorted(there - here):
        return warning(
            f"{shown} has fields that this program ({program}) does not know: {names(more)}",
            "use the program of the operator's version",
        )
    return warning(f"{shown} has the fields of version {program} with other bounds, rules or texts", _INSTALL)


@lru_cache(maxsize=1)
def _own() -> Mapping[str, Any]:
    return schema()


def fields(part: Mapping[str, Any], path: str = "", depth: int = _DEEPEST) -> Iterator[str]:
    """The paths of all fields of a schema."""
    if depth == 0:
        return
    for name, below in (part.get("properties") or {}).items():
        where = f"{path}.{name}".lstrip(".")
        yield where
        yield from fields(below, where, depth - 1)
    for name in ("items", "additionalProperties"):
        if isinstance(below := part.get(name), Mapping):
            yield from fields(below, f"{path}[]", depth - 1)


CHECKS = (
    Check("CRD", "it is installed and established, with this program's fields; storedVersions", ("crd",), crd, True),
    Check(
        "operator", "its Deployment, and whether its pods are ready", ("operators", "operator_pods"), deployment, True
    ),
    Check("operator version", "the operator's version, this program's and the CRD's", ("operators",), versions, True),
    Check("lease", "the operator's Lease is held and was renewed", ("leases", "operators"), lease, True),
    Check("settings", "the operator's settings are valid", ("settings",), settings, True),
    Check(
        "activator",
        "where autoscaling is enabled: the activators run, from the operator's image",
        ("settings", "activators", "activator_pods", "operators", "services"),
        activator,
        True,
    ),
    Check(
        "KEDA",
        "where autoscaling is enabled: ScaledObjects are served, KEDA runs and is 2.21 or later",
        ("settings", "activators", "keda_crd", "keda"),
        keda,
        True,
    ),
    Check(
        "LeaderWorkerSet",
        "where a service is spread over several nodes: groups are enabled, and LeaderWorkerSets are served",
        ("settings", "services", "lws_crd"),
        groups,
        True,
    ),
    Check(
        "dynamic resources",
        "where a service claims devices: that is enabled, Kubernetes serves claims, and the DeviceClasses are there",
        ("settings", "services", "device_classes"),
        dynamic_resources,
        True,
    ),
)
