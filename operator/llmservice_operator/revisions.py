"""Which revision is to run: the spec's own, a pinned one, the one before a failed one, or the running one while an
update waits; and its pod template, which is the recorded one until a change needs a restart.

A rollback removes no protection: where the record lacks some that the spec has (an API key, fewer media domains, no
code of the model's own, a security context), the record is rendered with the current protection, as a revision of its
own. A record that runs already is kept, and the status names what it lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

import orjson
from llmservice_api.base import SecretKeyRef
from llmservice_api.constants import UPDATE_REQUESTED_ANNOTATION
from llmservice_api.errors import InvalidSpec, Problem
from llmservice_api.reasons import Reason
from llmservice_api.service import LLMService, cached_by_service, cached_by_text, parse_spec
from llmservice_api.spec import ANY_DOMAIN, LLMServiceSpec
from llmservice_planner.checks import check
from llmservice_runtime.contract import API_KEYS_FILE

from llmservice_operator.decision import UpdatePermission
from llmservice_operator.facts.children import RevisionFacts
from llmservice_operator.facts.pods import PodFacts
from llmservice_operator.manifests.devices import written_claim
from llmservice_operator.manifests.meta import Manifest
from llmservice_operator.manifests.pod_template import pod_template, server_arguments
from llmservice_operator.manifests.revision import (
    NO_CHOICES,
    RevisionChoices,
    labelled,
    recorded_spec,
    revision_key,
    revision_label,
    spec_digest,
    start_plan,
    with_recorded_fields,
)
from llmservice_operator.manifests.server import (
    NO_MEDIA_DOMAIN,
    image,
    vllm_arguments,
    vllm_version,
)
from llmservice_operator.manifests.settings import Settings
from llmservice_operator.observe.observed import Observed, Ownership, ownership
from llmservice_operator.workload.port import WorkloadFacts

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RevisionMatch:
    """The recorded revisions that match a spec."""

    key: str
    newest: int
    """The highest revision number; 0: there is none."""
    latest: RevisionFacts | None
    """The latest revision with the spec's key, or the one that is to run instead."""
    template: Manifest | None = None
    """Its template, if no change needs another one."""
    chosen: RevisionChoices | None = None
    """Its recorded choices, likewise."""
    of_key: tuple[RevisionFacts, ...] = ()
    """All revisions with the spec's key, if another template is needed: it may be one of theirs."""
    is_rerendered: bool = False
    """The recorded template never ran, and is rendered again."""

    @property
    def label(self) -> str | None:
        """Label of the revision that is to run; None: it depends on the template that is yet to be rendered."""
        if self.latest is None:
            return self.key
        return None if self.template is None else self.latest.label

    @property
    def is_update(self) -> bool:
        """Whether the user requested an update though a template for the spec is recorded."""
        return self.latest is not None and self.template is None

    def on(self, record: RevisionFacts) -> RevisionMatch:
        """The match with the template of this record."""
        return _with_record(self.key, self.newest, record)


@dataclass(frozen=True, slots=True)
class DesiredRevision:
    """A revision: its label, its template, and its choices."""

    label: str
    number: int
    key: str
    template: Manifest
    """With the revision label, as in the workload."""
    chosen: RevisionChoices
    update_pending: bool
    """The current rendering differs, and waits for the next rollout."""


def match_revision(
    service: LLMService, revisions: Sequence[RevisionFacts], returned: RevisionFacts | None = None
) -> RevisionMatch:
    """The record with the spec's key, unless an update is requested.

    `returned` is a record that is to run instead, with its own key.
    """
    newest = max((facts.revision for facts in revisions), default=0)
    if returned is not None:
        return _with_record(returned.key, newest, returned)
    key, requested = revision_key(service.spec), _requested(service)
    of_key = _of_key(key, revisions)
    if of_key and requested in (None, of_key[-1].update_requested):
        return _with_record(key, newest, of_key[-1])
    return RevisionMatch(key, newest, of_key[-1] if of_key else None, of_key=of_key)


def match_protected(service: LLMService, revisions: Sequence[RevisionFacts], returned: RevisionFacts) -> RevisionMatch:
    """The revision of a record with the current spec's protection: a recorded one, or one to render with the record's
    choices."""
    newest = max((facts.revision for facts in revisions), default=0)
    key = revision_key(service.spec)
    if of_key := _of_key(key, revisions):
        return _with_record(key, newest, of_key[-1])
    chosen = replace(_recorded(returned.body)[1], recorded=None)
    return RevisionMatch(key, newest, None, chosen=chosen)


def rerendered(
    service: LLMService,
    match: RevisionMatch,
    observed: Observed,
    revisions: Sequence[RevisionFacts],
    settings: Settings,
) -> RevisionMatch:
    """The match, without the recorded template if that never ran and the current rendering differs.

    Unchanged while a pod of another revision runs: another template would be another rollout, which may stop that pod.
    """
    if match.latest is None or match.template is None or not _never_ran(service, match.latest, observed):
        return match
    if any(_runs(pod) and pod.revision != match.latest.label for pod in observed.pods):
        return match
    if _rendered(service, settings, match.chosen or NO_CHOICES, match.latest.label) == match.template:
        return match
    of_key = _of_key(match.key, revisions)
    return RevisionMatch(match.key, match.newest, match.latest, of_key=of_key, is_rerendered=True)


def _runs(pod: PodFacts) -> bool:
    """On a node, and not being deleted."""
    return pod.scheduled and not pod.deleting and pod.phase not in ("Failed", "Succeeded")


def _never_ran(service: LLMService, record: RevisionFacts, observed: Observed) -> bool:
    """Whether certainly no pod of a revision has been on a node.

    All of its pods are its first ones, so that none replaced another, and the scheduler has found no node for any. In
    other cases a pod may have run: a deleted one leaves no trace.
    """
    live, rollout = observed.workload, service.status.get("rollout") or {}
    pods = [pod for pod in observed.pods if pod.revision == record.label]
    if live is None or live.revision != record.label or not pods or rollout.get("stableRevision") == record.label:
        return False
    if rollout.get("revision") == record.label and "measured" in service.status:
        return False
    return all(
        pod.unschedulable and not pod.scheduled and pod.phase == "Pending" and _is_first(pod, record) for pod in pods
    )


_MADE_WITHIN = timedelta(seconds=120)
"""Time after the revision's creation in which its first pods are created."""


def _is_first(pod: PodFacts, record: RevisionFacts) -> bool:
    if not (pod.created_at and record.created_at):
        return False
    age = datetime.fromisoformat(pod.created_at) - datetime.fromisoformat(record.created_at)
    return abs(age) <= _MADE_WITHIN


def _rendered(service: LLMService, settings: Settings, chosen: RevisionChoices, label: str) -> Manifest:
    return labelled(pod_template(service, settings, chosen), label)


def _of_key(key: str, revisions: Sequence[RevisionFacts]) -> tuple[RevisionFacts, ...]:
    """The latest last."""
    return tuple(sorted((facts for facts in revisions if facts.key == key), key=lambda f: (f.revision, f.label)))


def _with_record(key: str, newest: int, record: RevisionFacts) -> RevisionMatch:
    return RevisionMatch(key, newest, record, *_recorded(record.body))


@cached_by_text
def _recorded(text: bytes) -> tuple[Manifest, RevisionChoices]:
    """Template and choices of a record, by its stored body: records are immutable, and each evaluation reads them."""
    data = orjson.loads(text)["data"]
    return data["template"], RevisionChoices.from_document(data.get("chosen") or {})


def desired_revision(
    service: LLMService, match: RevisionMatch, chosen: RevisionChoices, settings: Settings
) -> DesiredRevision:
    """The recorded template, or a new one with these choices."""
    if match.template is not None and match.latest is not None:
        label = match.latest.label
        return DesiredRevision(
            label=label,
            number=match.newest if match.latest.revision == match.newest else match.newest + 1,
            key=match.key,
            template=match.template,
            chosen=chosen,
            update_pending=match.template != _rendered(service, settings, chosen, label),
        )
    requested = _requested(service)
    start, spec = start_plan(service, chosen.plan), recorded_spec(service.spec)
    claimed = chosen.claim or written_claim(service)
    chosen = replace(chosen, start=start, update_requested=requested, spec=spec, claim=claimed, recorded=None)
    rendered = pod_template(service, settings, chosen)
    is_first = match.latest is None or (requested is None and not match.is_rerendered)
    label = match.key if is_first else revision_label(match.key, rendered, requested)
    known = next((record for record in match.of_key if record.label == label), None)
    if known is not None:  # recorded content is immutable
        return desired_revision(service, match.on(known), _recorded(known.body)[1], settings)
    return DesiredRevision(label, match.newest + 1, match.key, labelled(rendered, label), chosen, update_pending=False)


def _requested(service: LLMService) -> str | None:
    return service.annotations.get(UPDATE_REQUESTED_ANNOTATION)


_FIELD = "spec.rollout.pinnedRevision"


@dataclass(frozen=True, slots=True)
class Rollback:
    record: RevisionFacts
    service: LLMService
    """With the recorded values of all fields that need a restart."""
    has_spec: bool
    """The record has its spec; one of an earlier release does not, and `service` has the current spec."""
    failed: str | None = None
    """The failed revision that this one replaces; None: it is pinned."""
    reason: str = ""
    """The cause, after a failure."""
    lacks: tuple[str, ...] = ()
    """Fields of the spec whose protection the record lacks."""
    is_protected: bool = False
    """`service` has that protection, so that the running revision differs from the record."""

    @property
    def kept(self) -> str:
        """Fields of the current spec that run with the record, in words; empty for an unchanged record."""
        if not self.is_protected:
            return ""
        fields = ", ".join(f"spec.{field}" for field in self.lacks)
        return f"Revision {self.record.label} runs with the {fields} of now, which it was made without."


def rollback_for(
    service: LLMService, revisions: Sequence[RevisionFacts], runs: str | None
) -> Rollback | Problem | None:
    """None: the spec's own revision runs. `runs` is the revision of the workload."""
    recorded = {record.label: record for record in revisions}
    rollout: Json = service.status.get("rollout") or {}
    pinned = service.spec.rollout.pinned_revision
    stable = recorded.get(str(rollout.get("stableRevision")))
    failed = rollout.get("failedRevision")
    if stable is not None and failed not in (None, stable.label) and has_failed(service):
        back = _returned(service, stable, runs, failed, _why(service.status, stable.label))
        return None if isinstance(back, Problem) else back
    if pinned is None:
        return None
    return _returned(service, recorded[pinned], runs) if pinned in recorded else _unknown(pinned, revisions)


def has_failed(service: LLMService) -> bool:
    """Whether the status records a failure of this spec, and the spec allows a rollback."""
    rollout: Json = service.status.get("rollout") or {}
    remembered = rollout.get("failedSpec")
    return service.spec.rollout.auto_rollback and remembered is not None and remembered == digest_of(service)


def digest_of(service: LLMService) -> str:
    """Identifies a spec that failed."""
    return spec_digest(service.spec, service.annotations.get(UPDATE_REQUESTED_ANNOTATION))


def _returned(
    service: LLMService, record: RevisionFacts, runs: str | None, failed: str | None = None, reason: str = ""
) -> Rollback | Problem:
    data = record.data()
    made_of = (data.get("chosen") or {}).get("spec")
    try:
        then = with_recorded_fields(service.spec, made_of) if made_of else None
    except InvalidSpec:
        then = None  # its template need not be read
    lacks = (
        missing_protection(then, service.spec)
        if then is not None
        else _missing_protection(data.get("template") or {}, service.spec)
    )
    is_protected = bool(lacks) and record.label != runs
    if is_protected and then is None:
        return _unprotected(record.label, lacks)
    if is_protected and then is not None:
        then = _with_protection(then, service.spec, lacks)
    returned = service if then is None else replace(service, spec=then)
    return Rollback(record, returned, then is not None, failed, reason, lacks, is_protected)


_KEY, _DOMAINS, _CODE, _SECURITY = (
    "endpoint.apiKeySecretRef",
    "multimodal.allowedMediaDomains",
    "model.trustRemoteCode",
    "podTemplate.spec.securityContext",
)


def missing_protection(then: LLMServiceSpec, now: LLMServiceSpec) -> tuple[str, ...]:
    """Fields of `now` whose protection `then` lacks."""
    key, security = now.endpoint.api_key_secret_ref, now.pod_template.spec.security_context
    return _open_fields(
        now,
        key=key is not None and then.endpoint.api_key_secret_ref != key,
        domains=then.multimodal.allowed_media_domains,
        code=then.model.trust_remote_code,
        security=bool(security) and then.pod_template.spec.security_context != security,
    )


def _missing_protection(template: Json, now: LLMServiceSpec) -> tuple[str, ...]:
    """The same for a record without its spec, by its pod template."""
    arguments = [str(argument) for argument in server_arguments(template)]
    key, security = now.endpoint.api_key_secret_ref, now.pod_template.spec.security_context
    pod = template.get("spec")
    pod = pod if isinstance(pod, Mapping) else {}
    runs_as = pod.get("securityContext")
    runs_as = runs_as if isinstance(runs_as, Mapping) else {}
    return _open_fields(
        now,
        key=key is not None and not (any(API_KEYS_FILE in one for one in arguments) and _mounts(pod, key)),
        domains=_values(arguments, "--allowed-media-domains") or (ANY_DOMAIN,),
        code="--trust-remote-code" in arguments,
        security=any(name not in runs_as or runs_as[name] != value for name, value in security.items()),
    )


def _open_fields(
    now: LLMServiceSpec, *, key: bool, domains: Sequence[str], code: bool, security: bool
) -> tuple[str, ...]:
    """Fields of `now` whose protection is missing, given a record's protection."""
    asked = now.multimodal.allowed_media_domains
    opens = {
        _KEY: key,
        _DOMAINS: ANY_DOMAIN not in asked and not set(domains) <= {*asked, NO_MEDIA_DOMAIN},
        _CODE: code and not now.model.trust_remote_code,
        _SECURITY: security,
    }
    return tuple(field for field, is_open in opens.items() if is_open)


def _mounts(pod: Json, key: SecretKeyRef) -> bool:
    """Whether a recorded pod mounts this key of this Secret."""
    volumes = pod.get("volumes")
    some = [one.get("secret") for one in volumes if isinstance(one, Mapping)] if isinstance(volumes, list) else []
    found = [one.get("items") for one in some if isinstance(one, Mapping) and one.get("secretName") == key.name]
    items = [item for one in found if isinstance(one, list) for item in one if isinstance(item, Mapping)]
    return any(item.get("key") == key.key for item in items)


def _values(arguments: Sequence[str], flag: str) -> tuple[str, ...]:
    """Values after a flag, up to the next one."""
    if flag not in arguments:
        return ()
    after = arguments[arguments.index(flag) + 1 :]
    return tuple(takewhile(lambda one: not one.startswith("--"), after))


def _with_protection(then: LLMServiceSpec, now: LLMServiceSpec, fields: Iterable[str]) -> LLMServiceSpec:
    """The spec with current values in these fields."""
    made, given = (spec.model_dump(mode="json", by_alias=True, exclude_defaults=True) for spec in (then, now))
    for field in fields:
        *sections, last = field.split(".")
        there, source = made, given
        for section in sections:
            there, source = there.setdefault(section, {}), source.get(section) or {}
        there.pop(last, None)
        if last in source:
            there[last] = source[last]
    return parse_spec({name: section for name, section in made.items() if section or name == "lora"})


def _unprotected(label: str, fields: Sequence[str]) -> Problem:
    names = " and ".join(f"spec.{field}" for field in fields)
    return Problem(
        _FIELD,
        f"Revision {label} was made without the protection of {names} as the spec has it now, and its record cannot "
        "be rendered with it.",
        f"Name a later revision, or open {names} in the spec too, if that is meant.",
        Reason.REVISION_UNPROTECTED,
    )


def _why(status: Json, stable: str) -> str:
    """The reason from the status at the time of the failure: later the failure itself is no longer in it."""
    rollout: Json = status.get("rollout") or {}
    if rollout.get("revision") != rollout.get("failedRevision"):
        return str(rollout.get("reason") or "")
    failure: Json = status.get("failure") or {}
    cause = f" ({failure.get('reason')}: {str(failure.get('message', '')).rstrip('.')})" if failure else ""
    return (
        f"Revision {rollout['failedRevision']} did not become ready{cause}, so revision {stable} serves again. "
        f"{Reason.ROLLED_BACK.remedy}"
    )[:_LIMIT]


_LIMIT = 4096
"""The CRD's limit."""


def _unknown(pinned: str, revisions: Sequence[RevisionFacts]) -> Problem:
    latest_first = sorted(revisions, key=lambda record: -record.revision)
    there = ", ".join(record.label for record in latest_first) or "none"
    return Problem(
        _FIELD,
        f"No revision {pinned} is recorded; there are, the latest first: {there}.",
        "Name one of them, or remove the field to go on with the spec.",
        Reason.REVISION_NOT_FOUND,
    )


def running_until_update(
    service: LLMService, observed: Observed, match: RevisionMatch, revisions: Sequence[RevisionFacts]
) -> RevisionFacts | None:
    """The revision that keeps running until the update may start; None: the next template is not just an update."""
    live = observed.workload
    if live is None or live.spec_replicas == 0 or service.spec.paused:
        return None
    running = next((r for r in revisions if (r.label, r.key) == (live.revision, match.key)), None)
    if running is None or match.latest is None:
        return None
    is_begun = not match.is_update and (match.latest.label == running.label or not is_by_request(match.latest))
    return None if is_begun else running


def is_by_request(record: RevisionFacts) -> bool:
    """Whether the revision was created by a requested update: the first one of a key has the key as its label."""
    return record.label != record.key and record.update_requested is not None


@dataclass(frozen=True, slots=True)
class Selection:
    """The revision that a decision is about."""

    service: LLMService
    """The service as it is to run: with recorded values of fields that need a restart, if a recorded revision runs."""
    asked: LLMServiceSpec
    """The current spec, whatever runs: its claims stay."""
    revisions: Sequence[RevisionFacts]
    """The service's own, the oldest first."""
    match: RevisionMatch
    rollback: Rollback | None
    problems: tuple[Problem, ...] = ()
    """Why this release would not start the service; a recorded revision runs nevertheless."""
    is_update_refused: bool = False
    """The problems prevent a requested update."""
    spec_hash: str | None = None
    """Hash of the current spec, for an automatic rollback."""
    needs_update_permission: bool = False
    """A requested update would start, and others may be running."""
    waiting_update: UpdatePermission | None = None
    """Why the requested update may not start."""

    @property
    def may_choose_strategy(self) -> bool:
        """False where nothing is applied, or the running revision is to be replaced by a rollback."""
        return not self.service.spec.paused and (self.rollback is None or self.rollback.failed is None)


def select(
    service: LLMService, observed: Observed, settings: Settings, update_permission: UpdatePermission | None
) -> Selection | tuple[Problem, ...]:
    """The selection, or problems for which nothing may run. Without `update_permission`, an update may start."""
    revisions = own_revisions(service, observed)
    live = own_workload(service, observed)
    rollback = rollback_for(service, revisions, live.revision if live is not None else None)
    if isinstance(rollback, Problem):
        return (rollback,)
    asked, spec_hash = service.spec, digest_of(service) if service.spec.rollout.auto_rollback else None
    service = service if rollback is None else rollback.service
    if rollback is not None and rollback.is_protected:
        match = match_protected(service, revisions, rollback.record)
    else:
        match = match_revision(service, revisions, rollback.record if rollback is not None else None)
    problems = _checked(service, settings)
    if problems and match.latest is None:
        return problems
    is_refused = bool(problems) and match.is_update
    if is_refused and match.latest is not None:  # the recorded revision of the spec keeps running
        match = match.on(match.latest)
    if rollback is None and not problems:
        match = rerendered(service, match, observed, revisions, settings)
    is_requested = rollback is None and not match.is_rerendered
    running = running_until_update(service, observed, match, revisions) if is_requested else None
    waiting_update = None
    if running is not None and update_permission is not None and not update_permission.is_granted:
        waiting_update, match = update_permission, match.on(running)
    return Selection(
        service, asked, revisions, match, rollback, problems, is_refused, spec_hash, running is not None, waiting_update
    )


def own_revisions(service: LLMService, observed: Observed) -> list[RevisionFacts]:
    """Includes those of an orphaned service: its model may still be running."""
    ours = (Ownership.OURS, Ownership.ORPHAN)
    return [r for r in observed.revisions if r.is_valid_record and ownership(r, service) in ours]


def own_workload(service: LLMService, observed: Observed) -> WorkloadFacts | None:
    """The workload, if it is this service's or an orphan of its name."""
    live = observed.workload
    return live if live is not None and ownership(live, service) in (Ownership.OURS, Ownership.ORPHAN) else None


def rolled_workload(service: LLMService, observed: Observed, revision: str) -> WorkloadFacts | None:
    """The own workload that has the template of a revision, which may not serve yet while replicas move between kinds;
    else the one that serves."""
    ours = (Ownership.OURS, Ownership.ORPHAN)
    found = (each for each in observed.workloads if each.revision == revision and ownership(each, service) in ours)
    return next(found, None) or own_workload(service, observed)


@cached_by_service
def _checked(service: LLMService, settings: Settings) -> tuple[Problem, ...]:
    version = vllm_version(service, settings)
    arguments = vllm_arguments(service, version)
    return check(service.spec, image=image(service, settings), vllm_version=version, arguments=arguments)
