"""What the operator asks of the API server is what its roles grant: no verb missing, none unused, no Secret; and
nothing that is deprecated.

The test makes the operator do everything it ever does, and reads the audit log of the whole life of this cluster for
what was used, and since the chart was last installed or upgraded for what was refused: the more ran before, the better.
"""

from __future__ import annotations

import json

from llmservice_api.constants import CHILD_KINDS, VERBS
from llmservice_api.service import LLMService
from llmservice_operator.manifests.inspection import job_name

from tests.support.audit import DEPRECATED, Right, audited, granted, is_forbidden, rights_of, since_installed
from tests.support.cluster import Cluster, eventually
from tests.support.foreign import THEIRS, theirs
from tests.support.operator import OPERATOR, OPERATOR_NAMESPACE, scale_operator, wait_for_spec
from tests.support.patience import KUBECTL_TIMEOUT
from tests.support.services import idle, stand_in

# With them nobody has to look at the model.
FACTS = {
    "numHiddenLayers": 2,
    "hiddenSize": 64,
    "numAttentionHeads": 4,
    "numKeyValueHeads": 2,
    "vocabSize": 512,
    "intermediateSize": 256,
    "maxPositionEmbeddings": 512,
}
# Nothing listens there: the inspection ends with a reason, and soon.
NO_HUB = {"env": [{"name": "HF_ENDPOINT", "value": "http://127.0.0.1:9"}]}


QUOTAS = Right("", "resourcequotas", "list")
SLICES = {Right("discovery.k8s.io", "endpointslices", verb) for verb in ("get", "create", "patch", "delete")}
"""Only of services that may have no replica."""
OPENSHIFTS = Right("discovery.k8s.io", "endpointslices/restricted", "create")


def optional() -> set[Right]:
    """On kinds whose CRD this cluster need not have, and what is read for services that have such a child only."""
    kinds = [child for child in CHILD_KINDS if child.is_optional]
    return (
        {Right(child.resource.group, child.resource.plural, verb) for child in kinds for verb in VERBS}
        | {QUOTAS, OPENSHIFTS}
        | SLICES
    )


def test_roles_grant_what_is_used_and_nothing_else(cluster: Cluster, namespace: str) -> None:
    prune_children(cluster, namespace)
    meet_foreign_objects(cluster, namespace)
    look_at_models(cluster, namespace)
    look_at_nodes(cluster, namespace)
    look_at_events(cluster, namespace)
    remove_replicas(cluster, namespace)
    lead_anew(cluster)
    entries = list(audited(cluster))
    used = {right for entry in entries for right in rights_of(entry) if not is_forbidden(entry)}
    assert granted(cluster) - used - optional() == set(), "granted, but never used"
    _, refused = since_installed(cluster)
    assert refused == set(), "asked for, but not granted"
    asked = {(entry["objectRef"]["resource"], entry["verb"]) for entry in entries}
    assert "secrets" not in {resource for resource, _ in asked}
    assert {verb for resource, verb in asked if resource == "configmaps"} <= {"patch", "delete"}, "none is read"
    marked = [entry for entry in entries if DEPRECATED in entry.get("annotations", {})]
    deprecated = {right for entry in marked for right in rights_of(entry)}
    assert deprecated == set(), "asked for, and a later version of Kubernetes does not serve it"


def prune_children(cluster: Cluster, namespace: str) -> None:
    """A budget, a claim, a list of adapters and an old revision that are no longer wanted."""
    cache = {"size": "1Gi"}
    hub = {"uri": "hf://example/model", "cache": cache, "architecture": FACTS}
    # Replicas without room: what is under test needs the budget, not the pods.
    placement = {"spec": {"nodeSelector": {"no": "node"}}}
    service = idle("pruned", model=hub, scaling={"replicas": 2}, podTemplate=placement, lora={})
    cluster.apply(service, namespace)
    eventually("the budget", lambda: cluster.get("poddisruptionbudgets", namespace, "pruned"), 30)
    eventually("the claim", lambda: cluster.get("persistentvolumeclaims", namespace, "pruned-cache"), 30)
    eventually("the list", lambda: cluster.get("configmaps", namespace, "pruned-adapters"), 30)
    cluster.patch("llmservices", namespace, "pruned", {"spec": {"lora": None}})
    eventually("no list", lambda: not cluster.get("configmaps", namespace, "pruned-adapters"), 30)
    for number in range(6):
        change = {"spec": {"batching": {"maxNumSeqs": number + 1}, "scaling": {"replicas": 0}}}
        cluster.patch("llmservices", namespace, "pruned", change)
        wait_for_spec(cluster, namespace, "pruned")
    cluster.patch("llmservices", namespace, "pruned", {"spec": {"model": {"cache": None}}})
    eventually("no budget", lambda: not cluster.get("poddisruptionbudgets", namespace, "pruned"), 60)
    eventually("no claim", lambda: is_leaving(cluster, namespace, "pruned-cache"), 60)
    selector = "llmservice.dev/service=pruned"
    eventually("five revisions", lambda: len(cluster.list("controllerrevisions", namespace, selector)) == 5, 60)


def is_leaving(cluster: Cluster, namespace: str, claim: str) -> bool:
    """Deleted, or about to be once no pod uses it."""
    found = cluster.get("persistentvolumeclaims", namespace, claim)
    return found is None or "deletionTimestamp" in found["metadata"]


def meet_foreign_objects(cluster: Cluster, namespace: str) -> None:
    """Objects of others in the way of each kind of child: the operator reads them to name their owner."""
    model = {"uri": "hf://example/model", "cache": {"size": "1Gi"}, "architecture": FACTS}
    wanted = idle("met", model=model, scaling={"replicas": 2})
    wanted["spec"] |= {"podTemplate": {"spec": {"nodeSelector": {"no": "node"}}}, "lora": {}}
    cluster.apply(wanted, namespace)
    eventually("all children", lambda: cluster.get("poddisruptionbudgets", namespace, "met"), 30)
    (revision,) = cluster.list("controllerrevisions", namespace, "llmservice.dev/service=met")
    names = {"configmaps": "met-adapters", "persistentvolumeclaims": "met-cache"}
    names["controllerrevisions"] = revision["metadata"]["name"]
    in_the_way = [(plural, names.get(plural, "met")) for plural in THEIRS if plural != "jobs"]
    with scale_operator(cluster, 0):
        for plural, name in in_the_way:
            cluster.kubectl("delete", plural, name, "-n", namespace, "--wait=true", KUBECTL_TIMEOUT)
        for plural, name in in_the_way:
            cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(theirs(plural, name)))
    for plural, name in in_the_way:
        named = f"{THEIRS[plural]['kind']} {name} exists"

        def reported(named: str = named) -> bool:
            accepted = cluster.condition(namespace, "met", "Accepted") or {}
            return accepted.get("reason") == "NameConflict" and named in accepted["message"]

        eventually(f"a conflict with {named}", reported, 90)
        cluster.kubectl("delete", plural, name, "-n", namespace, "--wait=true", KUBECTL_TIMEOUT)


def look_at_models(cluster: Cluster, namespace: str) -> None:
    """A Job that looks and is deleted; and one of somebody else's in its place, whose owner the operator reads."""
    cluster.apply(idle("looked", model={"uri": "hf://example/model"}, runtime=NO_HUB), namespace)
    known = eventually("an end of the inspection", lambda: cluster.status(namespace, "looked").get("model"), 90)
    assert "127.0.0.1:9" in known["failure"]
    eventually("no Job", lambda: not cluster.list("jobs", namespace, "llmservice.dev/service=looked"), 30)
    with scale_operator(cluster, 0):
        cluster.apply(idle("kept-from-looking", model={"uri": "hf://example/other"}, runtime=NO_HUB), namespace)
        made = LLMService.from_object(cluster.must_get("llmservices", namespace, "kept-from-looking"))
        cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(theirs("jobs", job_name(made))))

    def is_reported() -> bool:
        fits = cluster.condition(namespace, "kept-from-looking", "Fits") or {}
        return fits.get("status") == "Unknown" and "cannot be made" in fits["message"]

    eventually("whose Job is in the way", is_reported, 90)
    eventually("the rest", lambda: cluster.get("deployments", namespace, "kept-from-looking"), 30)


def look_at_nodes(cluster: Cluster, namespace: str) -> None:
    """Which GPUs there are; nowhere is one."""
    model = {"uri": "hf://example/model", "architecture": FACTS}
    cluster.apply(idle("placed", model=model, accelerator={"type": "nvidia"}), namespace)
    eventually("a word on GPUs", lambda: cluster.condition(namespace, "placed", "Fits"), 30)


def look_at_events(cluster: Cluster, namespace: str) -> None:
    """Why a pod gets no container; only the kubelet's Events say."""
    volumes = [{"name": "settings", "configMap": {"name": "nobody-made-it"}}]
    spec = {"volumes": volumes, "volumeMounts": [{"name": "settings", "mountPath": "/settings"}]}
    cluster.apply(stand_in("unmounted", podTemplate={"spec": spec}), namespace)
    cluster.wait_condition(namespace, "unmounted", "Ready", "False", reason="VolumeUnavailable", timeout=60)


def remove_replicas(cluster: Cluster, namespace: str) -> None:
    """Pods get a deletion cost before one of them is removed."""
    cluster.apply(stand_in("reduced", scaling={"replicas": 2}), namespace)
    cluster.wait_condition(namespace, "reduced", "Ready", "True", timeout=120)
    cluster.kubectl("scale", "llmservice/reduced", "--replicas=1", "-n", namespace)
    eventually("one pod", lambda: len(cluster.pods(namespace, "reduced")) == 1, 90)


def lead_anew(cluster: Cluster) -> None:
    """Without its Lease the operator makes one."""
    with scale_operator(cluster, 0):
        cluster.kubectl("delete", "lease", OPERATOR, "-n", OPERATOR_NAMESPACE, "--ignore-not-found")
    eventually("a new lease", lambda: cluster.get("leases", OPERATOR_NAMESPACE, OPERATOR), 30)
