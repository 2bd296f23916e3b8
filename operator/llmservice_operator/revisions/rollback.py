"""Whether a recorded revision runs instead of the spec's: it is pinned, or the spec's own failed.

A rollback removes no protection: where the record lacks some that the spec has (an API key, fewer media domains, no
code of the model's own, a security context), the record is rendered with the current protection, as a revision of its
own. A record that runs already is kept, and the status names what it lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from llmservice_api.constants import UPDATE_REQUESTED_ANNOTATION
from llmservice_api.errors import InvalidSpec, Problem
from llmservice_api.reasons import Reason
from llmservice_api.scalars import SecretKeyRef
from llmservice_api.service import LLMService, parse_spec
from llmservice_api.spec import ANY_DOMAIN, LLMServiceSpec
from llmservice_runtime.contract import API_KEYS_FILE

from llmservice_operator.facts.children import RevisionFacts
from llmservice_operator.manifests.effective import server_arguments
from llmservice_operator.manifests.engine import NO_MEDIA_DOMAIN
from llmservice_operator.manifests.revision import spec_digest, with_recorded_fields

Json = Mapping[str, Any]

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
