"""Desired children of a service in their order of application, and differences from the cluster: what to apply, what to
prune, and obstacles."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson
from llmservice_api.constants import (
    ADAPTERS_ANNOTATION,
    APPLIED_HASH_ANNOTATION,
    BY_KIND,
    CHILD_KINDS,
    HAS_OWN_CONDITION,
    LEADER_WORKER_SET,
    NETWORK_POLICY,
    RESOURCE_CLAIM_TEMPLATE,
    SHARED_ENDINGS,
    VERBS,
    claim_names,
)
from llmservice_api.holding import is_idle
from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService, cached_by_service
from llmservice_api.spec import LLMServiceSpec

from llmservice_operator.decision import Apply, Prune
from llmservice_operator.facts import normalize
from llmservice_operator.facts.children import ChildFacts, RevisionFacts
from llmservice_operator.facts.drift import difference
from llmservice_operator.facts.routes import HTTPRouteFacts, is_taken
from llmservice_operator.manifests.children import (
    BUILDERS,
    adapters_config,
    adapters_digest,
    claim_manifest,
    claims,
    declared_manifests,
    has_adapters_config,
)
from llmservice_operator.manifests.children import service as service_manifest
from llmservice_operator.manifests.devices import claim_template, claimed_templates
from llmservice_operator.manifests.gateway import narrowed
from llmservice_operator.manifests.meta import (
    Manifest,
    Owner,
    adapters_config_name,
    answers_on_every_pod,
    metadata,
    nodes_of,
)
from llmservice_operator.manifests.pod_template import progress_deadline_seconds
from llmservice_operator.manifests.revision import KEPT, RevisionChoices, controller_revision
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.failures.failure import reason_of
from llmservice_operator.observe.observed import (
    AppliedRecord,
    ChildId,
    Observed,
    Ownership,
    Refusal,
    Unanswered,
    ownership,
)
from llmservice_operator.observe.verdict import Obstacle
from llmservice_operator.revisions import DesiredRevision, own_revisions
from llmservice_operator.workload.kinds import WORKLOADS, workload_of
from llmservice_operator.workload.port import Strategy, WorkloadFacts

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DesiredChild:
    """A manifest with its hash."""

    manifest: Manifest
    input_hash: str

    @property
    def id(self) -> tuple[str, str]:
        """(kind, name)."""
        return self.manifest["kind"], self.manifest["metadata"]["name"]


def desired_children(
    service: LLMService, asked: LLMServiceSpec, revision: DesiredRevision, strategy: Strategy, settings: Settings
) -> list[DesiredChild]:
    """In order: what pods need comes before the workload. `asked` is the spec itself, whatever revision runs."""
    made = revision.label, revision.number, revision.key, revision.template, revision.chosen
    return [
        *_made(service, *made, strategy, None if asked is service.spec else asked),
        *_declared(service, settings, service.replicas_stated_by, is_idle(service.spec.scaling, service.status)),
    ]


@cached_by_service
def _made(
    service: LLMService,
    label: str,
    number: int,
    key: str,
    template: Manifest,
    chosen: RevisionChoices,
    strategy: Strategy,
    asked: LLMServiceSpec | None,
) -> tuple[DesiredChild, ...]:
    revision = DesiredRevision(label, number, key, template, chosen, update_pending=False)
    return tuple(with_hash(manifest) for manifest in _manifests(service, asked or service.spec, revision, strategy))


@cached_by_service
def _declared(service: LLMService, settings: Settings, stated_by: str | None, idle: bool) -> tuple[DesiredChild, ...]:
    """Children of `CHILD_KINDS`. `stated_by` and `idle` are properties of the service outside its spec."""
    assert (service.replicas_stated_by, is_idle(service.spec.scaling, service.status)) == (stated_by, idle)
    return tuple(with_hash(manifest) for manifest in declared_manifests(service, settings))


def adopted_records(service: LLMService, orphans: Iterable[RevisionFacts]) -> list[DesiredChild]:
    """Orphaned records to adopt, unchanged: without an owner they would never be deleted."""
    manifests = []
    for record in orphans:
        data = record.data()
        chosen = RevisionChoices.from_document(data.get("chosen") or {})
        made = {"number": record.revision, "key": record.key, "template": data["template"], "chosen": chosen}
        manifests.append(controller_revision(service, label=record.label, **made))
    return [with_hash(manifest) for manifest in manifests]


def held_edit_children(
    service: LLMService,
    observed: Observed,
    live: WorkloadFacts,
    record: Json | None,
    strategy: Strategy,
    listed: str | None,
    settings: Settings,
) -> list[DesiredChild]:
    """Children while an edit is held: the serving revision, with everything that needs no restart.

    The workload `live` keeps the template of its `record` (None: unknown, it stays unchanged). The list of adapters
    waits with the edit, since pods may lack what it needs: `listed` is the digest of the applied list.
    """
    template = live.template() if record is None else record["template"]
    is_every_pod = _is_every_pod(template, observed)
    manifests = [_listing(service_manifest(service, live.nodes, is_every_pod=is_every_pod), listed)]
    if record is not None:
        claimed = (record.get("chosen") or {}).get("claim")
        manifests += [claim_template(service, claimed)] if claimed else []
        manifests.append(workload_of(template).manifest(service, template, strategy))
    manifests += declared_manifests(service, settings)
    return [with_hash(manifest) for manifest in manifests]


def between_kinds(
    service: LLMService, observed: Observed, desired: DesiredRevision, made: list[DesiredChild], strategy: Strategy
) -> list[DesiredChild]:
    """The children `made` while replicas move from one kind of workload to another, since their number of nodes changed
    from or to one.

    Surge: all new replicas become ready beside the old ones, then the Service selects them, then the old ones end.
    Recreate: the old ones end first. Until then the Service selects them. The old workload stays, without replicas: the
    operator deletes none.
    """
    wanted = workload_of(desired.template).kind
    left = [w for w in observed.workloads if w.kind != wanted and ownership(w, service) is Ownership.OURS]
    if not left:
        return made
    (old,) = left
    there = [each for each in observed.replicas if not each.has_ended]
    olds = [each for each in there if (len(each.pods) > 1 or bool(each.first.group)) is (old.nodes > 1)]
    news = [each for each in there if each not in olds and each.revision == desired.label]
    is_surge, replicas = strategy == "Surge", service.spec.scaling.replicas
    if observed.workload is old and (old.spec_replicas or (olds and not is_surge)):
        if not is_surge or sum(each.ready for each in news) < replicas:
            is_every_pod = _is_every_pod(old.template(), observed)
            made = _with_service(made, service_manifest(service, old.nodes, is_every_pod=is_every_pod))
        if is_surge and replicas:
            return made
        if not news:
            made = [_without_replicas(child) if child.id[0] == wanted else child for child in made]
    is_asked = observed.endpoints is None or any(
        pod.uid in observed.endpoints for each in there if each not in olds for pod in each.pods
    )
    if is_surge and replicas and old.spec_replicas and not is_asked:
        return made
    if not (spec := old.live()["spec"]):
        return made
    kept = {"apiVersion": BY_KIND[old.kind].api_version, "kind": old.kind, "metadata": metadata(service, old.name)}
    return [*made, with_hash(kept | {"spec": spec | {"replicas": 0}})]


def selecting_leaders(
    service: LLMService, observed: Observed, desired: DesiredRevision, made: list[DesiredChild]
) -> list[DesiredChild]:
    """The children `made` while pods of groups are there whose leader alone answers: the Service selects the leaders of
    all groups until those have ended. Workers have the port's name too, and nobody listens there."""
    if answers_on_every_pod(desired.template) is _is_every_pod(desired.template, observed):
        return made
    return _with_service(made, service_manifest(service, nodes_of(desired.template)))


def _is_every_pod(template: Manifest, observed: Observed) -> bool:
    """Whether the Service of this template may select every pod of its groups."""
    return answers_on_every_pod(template) and all(pod.has_api for pod in observed.pods if pod.group)


def _with_service(made: list[DesiredChild], manifest: Manifest) -> list[DesiredChild]:
    selecting = with_hash(manifest)
    return [selecting if child.id == selecting.id else child for child in made]


def _without_replicas(child: DesiredChild) -> DesiredChild:
    return with_hash(child.manifest | {"spec": child.manifest["spec"] | {"replicas": 0}})


def _listing(manifest: Manifest, listed: str | None) -> Manifest:
    """The Service with the digest of the applied list of adapters."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "annotations"}
    if listed is not None:
        metadata["annotations"] = {ADAPTERS_ANNOTATION: listed}
    return manifest | {"metadata": metadata}


def _manifests(
    service: LLMService, asked: LLMServiceSpec, revision: DesiredRevision, strategy: Strategy
) -> Iterator[Manifest]:
    if has_adapters_config(service):
        # Before the Service, which names it.
        yield adapters_config(service)
    is_every_pod = answers_on_every_pod(revision.template)
    yield service_manifest(service, nodes_of(revision.template), is_every_pod=is_every_pod)
    yield from (claim_manifest(service, claim) for claim in claims(service, asked))
    if revision.chosen.claim is not None:
        yield claim_template(service, revision.chosen.claim)
    yield controller_revision(
        service,
        label=revision.label,
        number=revision.number,
        key=revision.key,
        template=revision.template,
        chosen=revision.chosen,
    )
    yield workload_of(revision.template).manifest(service, revision.template, strategy)


def with_hash(manifest: Manifest) -> DesiredChild:
    """The manifest with its hash as an annotation, which shows fields that are no longer desired, also after a
    restart."""
    digest = hashlib.sha256(orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
    annotations = manifest["metadata"].get("annotations", {}) | {APPLIED_HASH_ANNOTATION: digest}
    metadata = manifest["metadata"] | {"annotations": annotations}
    return DesiredChild(manifest | {"metadata": metadata}, digest)


RETRY_SECONDS = 60.0
"""Seconds after a refusal of an optional child or of a deletion."""
_NEEDED = frozenset({"ConfigMap", "ControllerRevision", *(workload.kind for workload in WORKLOADS)})
"""Kinds whose refusal stops the applies after them: pods would have another list, record or template."""
_NEEDED_ONCE = frozenset({"Service", "PersistentVolumeClaim", RESOURCE_CLAIM_TEMPLATE.kind})
"""Kinds that must exist before pods; a refused change of an existing one stops nothing."""


def obstacle_to_apply(service: LLMService, observed: Observed, children: list[DesiredChild]) -> Obstacle | None:
    """Why a child cannot become as desired; kinds with a condition of their own are not obstacles."""
    ids = {child.id for child in children if child.id[0] not in HAS_OWN_CONDITION}
    if (unadopted := _unadopted(service, observed)) is not None:
        return unadopted
    leaving = [c for c in observed.children() if (c.kind, c.name) in ids and ownership(c, service) is Ownership.LEAVING]
    if leaving:
        named = ", ".join(f"{child.kind} {child.name}" for child in leaving)
        return Obstacle(Reason.PROGRESSING, f"Waiting until it is gone and can be made anew: {named}.", is_final=False)
    for (kind, name), refusal in sorted(observed.refused.items()):
        if (kind, name) in ids and refusal.code != 409:
            return _refused(f"{kind} {name} cannot be applied", refusal)
    for (kind, name), missed in sorted(observed.unanswered.items()):
        if (kind, name) in ids:
            return _unanswered(f"{kind} {name} cannot be written", missed, service)
    return next(_unlisted(service, observed, ids), None)


def _unadopted(service: LLMService, observed: Observed) -> Obstacle | None:
    """The child of an earlier service of this name that cannot be adopted, if any; of any kind."""
    left = (c for c in observed.children() if c.controller is not None and not c.deleting)
    ids = [(c.kind, c.name) for c in left if ownership(c, service) is Ownership.LEAVING]
    what = "is of an earlier LLMService of this name and cannot be taken over"
    return _stuck(ids, what, service, observed)


def obstacle_to_prune(service: LLMService | None, observed: Observed, prune: Iterable[Prune]) -> Obstacle | None:
    """The deletion that fails, if any. Of any kind: an EndpointSlice or ScaledObject that should be gone still has
    effects, and may have no condition any more."""
    return _stuck(((each.kind, each.name) for each in prune), "is to go and cannot be deleted", service, observed)


def _stuck(ids: Iterable[ChildId], what: str, service: LLMService | None, observed: Observed) -> Obstacle | None:
    """The first of these changes that was refused or not answered."""
    for kind, name in ids:
        if (refusal := observed.kept.get((kind, name))) is not None:
            return _refused(f"{kind} {name} {what}", refusal)
        if (missed := observed.unanswered.get((kind, name))) is not None:
            return _unanswered(f"{kind} {name} {what}", missed, service)
    return None


def _refused(what: str, refusal: Refusal) -> Obstacle:
    message = normalize.replica_failure(refusal.message)
    reason = reason_of(message)
    return Obstacle(reason, f"{what}: {message}.", remedy=reason.remedy, evidence=(message,))


def _unanswered(what: str, missed: Unanswered, service: LLMService | None) -> Obstacle:
    """The operator retries; the obstacle may pass before the rollout's deadline."""
    deadline = progress_deadline_seconds(service) if service is not None else 0
    message = normalize.replica_failure(missed.message)
    found = reason_of(message)
    obstacle = Obstacle(
        found if found is Reason.ADMISSION_UNAVAILABLE else Reason.API_SERVER_FAILING,
        f"{what}: {message}.",
        is_final=missed.seconds >= deadline,
        evidence=(message,),
    )
    return replace(obstacle, remedy=obstacle.reason.remedy)


def _unlisted(service: LLMService, observed: Observed, ids: set[ChildId]) -> Iterator[Obstacle]:
    """Children of kinds that the API server does not serve, or that the operator may not list."""
    for child in CHILD_KINDS:
        if child.kind in observed.hidden and (child.kind, service.name) in ids:
            resource = child.resource.full_name
            message = f"{child.kind} {service.name} is not made: {resource} cannot be listed."
            remedy = f"Install the CRD {resource}, or grant the operator {', '.join(VERBS)} on {resource}."
            yield Obstacle(Reason.ADMISSION_REFUSED, message, remedy=remedy)


def groups_unseen(service: LLMService, observed: Observed, template: Manifest) -> Obstacle | None:
    """Why nothing is changed while LeaderWorkerSets cannot be listed: of a service that has one, or that is to."""
    kind, pods = LEADER_WORKER_SET, sum(bool(pod.group) for pod in observed.pods)
    if kind.kind not in observed.hidden or (nodes_of(template) == 1 and not pods):
        return None
    what = f"{kind.kind} {service.name} "
    what += f"has {pods} pods and is left as it is" if pods else "is not made"
    remedy = "Install LeaderWorkerSet and set groups.enabled of the operator's chart"
    remedy += ", also to move to one node." if pods else ", or set spec.parallelism.nodes to 1."
    return Obstacle(Reason.ADMISSION_REFUSED, f"{what}: {kind.full_name} cannot be listed.", remedy=remedy)


def claims_unseen(service: LLMService, observed: Observed, template: Manifest) -> Obstacle | None:
    """Why no pod with claims of devices is made: before Kubernetes 1.34 they may be dropped without a word, and the pod
    would start without a GPU."""
    kind = RESOURCE_CLAIM_TEMPLATE
    if kind.kind not in observed.hidden or not (template.get("spec") or {}).get("resourceClaims"):
        return None
    message = f"Pods with claims of devices are not made: {kind.full_name} of {kind.api_version} cannot be listed."
    field = "resourceClaims" if service.spec.accelerator.resource_claims else "claim"
    remedy = (
        "Set dynamicResources.enabled of the operator's chart, on Kubernetes 1.34 or later, or ask for devices of a "
        f"device plugin: remove spec.accelerator.{field}."
    )
    return Obstacle(Reason.ADMISSION_REFUSED, message, remedy=remedy)


def applies(service: LLMService, observed: Observed, children: list[DesiredChild]) -> Iterator[Apply]:
    """Children that differ from what is desired."""
    for child in children:
        if child.id == _adapters_id(service):
            yield from _apply_unread(child, service, observed)
        elif (apply := apply_of(child, service, observed)) is not None:
            yield apply


def apply_of(child: DesiredChild, service: Owner, observed: Observed) -> Apply | None:
    """The apply of a readable child; None: it is as desired, or cannot be changed."""
    kind, live = child.id[0], observed.child(*child.id)
    is_needed = kind in _NEEDED or (kind in _NEEDED_ONCE and live is None)
    refusal = None if is_needed else observed.refused.get(child.id)
    if kind in observed.hidden or (refusal is not None and not _is_partly_taken(refusal, live)):
        return None
    apart: dict[str, Any] = {} if is_needed else {"is_optional": True, "retry_after": RETRY_SECONDS}
    if live is None:
        shared = child.id[1].endswith(SHARED_ENDINGS)
        return Apply(child.manifest, "it does not exist", input_hash=child.input_hash, is_shared_name=shared, **apart)
    whose = ownership(live, service)
    if whose in (Ownership.LEAVING, Ownership.FOREIGN):
        return None
    reason = why_apply(child, live, observed.applied.get(child.id))
    if refusal is not None and isinstance(live, HTTPRouteFacts):
        reason = _why_apply_the_rest(child, live, observed)
    if reason is None:
        return None
    return Apply(
        child.manifest,
        reason,
        known_uid=live.uid if whose is Ownership.OURS else None,
        remove_foreign_fields=bool(live.foreign) or not live.is_applied,
        input_hash=child.input_hash,
        **apart,
    )


def is_pending(apply: Iterable[Apply]) -> bool:
    """Whether a child without a condition of its own is still to be written."""
    return any(each.kind not in HAS_OWN_CONDITION for each in apply)


def _apply_unread(child: DesiredChild, service: LLMService, observed: Observed) -> Iterator[Apply]:
    """An unreadable child is applied while the Service, which is applied next, does not name it.

    An orphaned Service names an orphaned list, which is adopted too.
    """
    endpoint = observed.service
    applied = None
    if endpoint is not None and ownership(endpoint, service) is Ownership.OURS:
        applied = endpoint.adapters
    if applied != adapters_digest(service):
        yield Apply(child.manifest, "the list of adapters changed", is_unreadable=True, input_hash=child.input_hash)


def _adapters_id(service: LLMService) -> tuple[str, str]:
    return "ConfigMap", adapters_config_name(service)


def why_apply(child: DesiredChild, live: ChildFacts, record: AppliedRecord | None) -> str | None:
    """Why to apply; None where the live object has every desired value, whatever defaults and webhooks changed."""
    # Defaults that others own remain after a removal; they are not worth another attempt.
    if record == AppliedRecord(child.input_hash, live.managed_hash):
        return None
    found = difference(child.manifest, live.live(), live.content)
    if found is not None:
        return f"{found} is not as asked for"
    if live.foreign:
        return f"others added {', '.join(sorted(live.foreign))}"
    return None if live.is_applied else "the record of its field owners was reset"


def _is_partly_taken(refusal: Refusal, live: ChildFacts | None) -> bool:
    """Whether the rest of a live HTTPRoute is still to be as desired."""
    return isinstance(live, HTTPRouteFacts) and refusal.code == 409 and is_taken(refusal.message)


def _why_apply_the_rest(child: DesiredChild, live: HTTPRouteFacts, observed: Observed) -> str | None:
    """Why to apply an HTTPRoute some of whose requests are another's; None where it is as desired but for hosts and
    models that it lacks."""
    if child.id in observed.kept:
        return None
    made = dict(child.manifest)
    rest = narrowed(made, live.hosts, live.models)
    if rest is None:
        return "all that it has is no longer asked for"
    return why_apply(child if rest is made else with_hash(rest), live, observed.applied.get(child.id))


def undesired_children(service: LLMService, observed: Observed, settings: Settings) -> Iterator[Prune]:
    """Children of CHILD_KINDS that are no longer desired, whatever revision runs."""
    has_groups = any(pod.group for pod in observed.pods)
    for child in CHILD_KINDS:
        live = observed.child(child.kind, service.name)
        if child.resource is NETWORK_POLICY and has_groups:  # it protects them until the last one has ended
            continue
        if live is not None and BUILDERS[child.kind](service, settings) is None and may_prune(live, service):
            yield Prune(live.kind, live.name, live.uid, child.prune_reason)


def prunes(
    service: LLMService, asked: LLMServiceSpec, observed: Observed, desired: DesiredRevision, settings: Settings
) -> Iterator[Prune]:
    """Own children that are no longer desired; `asked` is the spec itself, whatever revision runs."""
    yield from undesired_children(service, observed, settings)
    wanted = {claim.name for claim in claims(service, asked)}
    # Pods of an earlier revision may still use a claim, and records of an earlier operator may mount it.
    is_unused = all(pod.revision == desired.label for pod in observed.pods)
    wanted |= mounted_claims(desired.template)
    for claim in observed.claims:
        if claim.name not in wanted and is_unused and _is_own(claim, service):
            field = claim_names(service.name)[claim.name]
            yield Prune(claim.kind, claim.name, claim.uid, f"{field} no longer asks for it")
    endpoint = observed.service
    was_listed = endpoint is not None and endpoint.adapters is not None and may_prune(endpoint, service)
    if was_listed and not has_adapters_config(service):
        yield Prune(*_adapters_id(service), uid=None, reason="LoRA is off")
    yield from _old_claim_templates(service, observed, desired)
    yield from _old_revisions(service, observed, desired)


def _old_claim_templates(service: LLMService, observed: Observed, desired: DesiredRevision) -> Iterator[Prune]:
    """Those that no revision needs which runs, or to which a rollback may return."""
    kept = claimed_templates(desired.template)
    others = [each for each in observed.claim_templates if each.name not in kept and _is_own(each, service)]
    if not others:
        return
    for record in own_revisions(service, observed):
        kept |= claimed_templates(record.data()["template"])
    for each in others:
        if each.name not in kept:
            yield Prune(each.kind, each.name, each.uid, "no recorded revision claims devices by it")


def mounted_claims(template: Manifest) -> set[str]:
    spec = template.get("spec")
    volumes = spec.get("volumes") if isinstance(spec, Mapping) else None
    claims = (volume.get("persistentVolumeClaim") for volume in volumes or () if isinstance(volume, Mapping))
    return {str(claim.get("claimName")) for claim in claims if isinstance(claim, Mapping)}


def _old_revisions(service: LLMService, observed: Observed, desired: DesiredRevision) -> Iterator[Prune]:
    """Old records, except the latest ones, the running one and those to which a rollback may return."""
    rollout = service.status.get("rollout") or {}
    in_use: set[str | None] = {desired.label, observed.workload.revision if observed.workload else ""}
    in_use |= {rollout.get("stableRevision"), service.spec.rollout.pinned_revision}
    in_use |= {pod.revision for pod in observed.pods}
    own = [r for r in observed.revisions if _is_own(r, service)]
    for revision in sorted(own, key=lambda r: r.revision, reverse=True)[KEPT:]:
        if revision.label not in in_use:
            yield Prune(revision.kind, revision.name, revision.uid, f"{KEPT} later revisions are kept")


def may_prune(child: ChildFacts, service: Owner) -> bool:
    """Also an orphan: nobody else would delete it."""
    return ownership(child, service) in (Ownership.OURS, Ownership.ORPHAN)


def _is_own(child: ChildFacts, service: LLMService) -> bool:
    """Whether it may be deleted as the service's own. A retained claim has no owner. Orphaned records are adopted
    first."""
    return child.owner_uid == service.uid and not child.deleting


def finished_jobs(service: LLMService, observed: Observed, job_in_use: str | None) -> Iterator[Prune]:
    """Jobs whose result is in the status, or that inspected another model."""
    for job in observed.inspection_jobs:
        if may_prune(job, service) and job.name != job_in_use:
            yield Prune(job.kind, job.name, job.uid, "what it found is recorded, or not needed")
