"""Where each reason and condition is reported. The texts of a reason are its row in `api.reasons`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from llmservice_api import reasons as sections
from llmservice_api.conditions import ConditionType as Type
from llmservice_api.reasons import Reason
from llmservice_runtime.failures.reasons import END, MODEL, SPEC, START, FailureReason, Section

_FIELD = re.compile(r"\b(?:spec|status)(?:\.[a-z][A-Za-z0-9]*)+")


@dataclass(frozen=True, slots=True)
class Reported:
    """The places in which a reason may be read."""

    conditions: tuple[Type, ...] = ()
    is_failure: bool = False
    """status.failure, with the log lines that show it, and the metric llmservice_failing_services."""
    has_event: bool = True
    field: str = ""
    """Another field of the status that says it."""

    def to_object(self) -> dict[str, Any]:
        """JSON."""
        found = {"conditions": list(map(str, self.conditions)), "failure": self.is_failure, "event": self.has_event}
        return {**found, "field": self.field} if self.field else found

    def sentences(self) -> Iterator[str]:
        """For people."""
        if self.conditions:
            yield f"conditions {', '.join(self.conditions)}"
        if self.is_failure:
            yield "status.failure, with log lines as evidence; metric llmservice_failing_services"
        if self.field:
            yield self.field
        if self.has_event:
            yield "an Event on the LLMService"


class Place(Enum):
    """What a reason stands for where the code names it, and so where somebody reads it.

    `tests/unit/cli/test_explain_reported.py` compares the tables below with the places in the code.
    """

    PROBLEM = "the spec is refused"
    HOLD = "nothing is applied until somebody changes something"
    WAIT = "a change has not come about yet"
    FAILURE = "status.failure"
    FIT = "a verdict of the plan"
    NO_VERDICT = "there is no verdict yet, or none is wanted"
    AUTOSCALED = "whether replicas follow the load"
    ROUTED = "whether prompts are routed"
    ACCEPTED = "the spec is valid"
    AVAILABLE = "whether a replica serves"
    AS_ASKED = "Ready is True"
    UNREADY = "Ready is False, without Reconciling or Stalled"
    INTERNAL = "the operator failed"
    DEGRADED = "a part of the operator failed"
    EVENT = "an Event alone"

    @property
    def reported(self) -> Reported:
        """Where that is read."""
        return _REPORTED[self]


_REPORTED: Mapping[Place, Reported] = {
    Place.PROBLEM: Reported((Type.ACCEPTED, Type.READY, Type.STALLED)),
    Place.HOLD: Reported((Type.READY, Type.STALLED)),
    Place.WAIT: Reported((Type.READY, Type.RECONCILING), has_event=False),
    Place.FAILURE: Reported((Type.READY, Type.RECONCILING, Type.STALLED), is_failure=True),
    Place.FIT: Reported((Type.FITS,)),
    Place.NO_VERDICT: Reported((Type.FITS,), has_event=False),
    Place.AUTOSCALED: Reported((Type.AUTOSCALED,), has_event=False),
    Place.ROUTED: Reported((Type.ROUTING_READY,), has_event=False),
    Place.ACCEPTED: Reported((Type.ACCEPTED,), has_event=False),
    Place.AVAILABLE: Reported((Type.AVAILABLE,), has_event=False),
    Place.AS_ASKED: Reported((Type.READY,)),
    Place.UNREADY: Reported((Type.READY,), has_event=False),
    Place.INTERNAL: Reported((Type.READY, Type.STALLED)),
    Place.DEGRADED: Reported((Type.DEGRADED,)),
    Place.EVENT: Reported(),
}
P = Place
_OF_SECTION: Mapping[Section, frozenset[Place]] = {
    **dict.fromkeys((sections.PLACE, sections.POD, MODEL, START, END, sections.NODE), frozenset({P.FAILURE})),
    SPEC: frozenset({P.PROBLEM}),
    sections.PLAN: frozenset({P.FIT}),
    sections.AUTOSCALED: frozenset({P.AUTOSCALED}),
    sections.ROUTED: frozenset({P.ROUTED}),
    sections.INTERNAL: frozenset({P.INTERNAL}),
}
_OF_REASON: Mapping[Reason, frozenset[Place]] = {
    reason: frozenset(places)
    for reason, places in {
        Reason.ADMISSION_REFUSED: {P.FAILURE, P.HOLD},
        Reason.API_SERVER_FAILING: {P.FAILURE, P.HOLD, P.WAIT},
        Reason(FailureReason.INVALID_FLAG): {P.FAILURE, P.PROBLEM},
        Reason(FailureReason.MAX_MODEL_LEN_TOO_LARGE): {P.FAILURE, P.PROBLEM},
        Reason(FailureReason.CONTEXT_EXTENSION_INVALID): {P.FAILURE, P.PROBLEM},
        Reason(FailureReason.PRECISION_UNSUPPORTED): {P.FAILURE, P.PROBLEM},
        Reason(FailureReason.CPU_FEATURE_MISSING): {P.FAILURE, P.HOLD},
        Reason.NAME_CONFLICT: {P.FAILURE, P.PROBLEM},
        Reason.NO_ENDPOINTS: {P.AVAILABLE, P.FAILURE, P.ROUTED},
        Reason.PROGRESS_DEADLINE_EXCEEDED: {P.FAILURE},
        Reason.NO_REPLICA_READY: {P.AVAILABLE},
        Reason.WAITING_FOR_GPU: {P.HOLD, P.WAIT},
        Reason.ROLLED_BACK: {P.HOLD},
        Reason.GAP_EXPECTED: {P.EVENT},
        Reason.SURGE_FELL_BACK: {P.EVENT},
        Reason.UPDATE_WAITING: {P.EVENT},
        Reason.ADAPTER_NOT_SERVED: {P.EVENT},
        Reason.STREAMS_ENDED: {P.EVENT},
        Reason.SCALED: {P.EVENT},
        Reason.DOES_NOT_FIT: {P.FAILURE, P.FIT, P.HOLD},
        Reason.INSPECTING_MODEL: {P.NO_VERDICT, P.WAIT},
        Reason.POLICY_IGNORE: {P.NO_VERDICT},
        Reason.HOLDING_UNAVAILABLE: {P.AUTOSCALED, P.EVENT},
        Reason.INTERNAL_ERROR: {P.DEGRADED, P.INTERNAL},
        Reason.REVISION_UNPROTECTED: {P.DEGRADED, P.PROBLEM},
        Reason.VALID: {P.ACCEPTED},
        Reason.PAUSED: {P.ACCEPTED, P.UNREADY},
        Reason.REPLICAS_READY: {P.AVAILABLE},
        Reason.ROLLED_OUT: {P.AS_ASKED},
        Reason.IDLE: {P.AS_ASKED, P.AVAILABLE},
        Reason.SCALED_TO_ZERO: {P.AS_ASKED, P.AUTOSCALED, P.AVAILABLE},
        Reason.PROGRESSING: {P.AUTOSCALED, P.EVENT, P.ROUTED, P.WAIT},
        Reason.STARTING: {P.WAIT},
        Reason.STARTING_SLOWLY: {P.WAIT},
        Reason.AUTOSCALING: {P.AUTOSCALED},
        Reason.ROUTING: {P.ROUTED},
        Reason.ATTACHED: {P.ROUTED},
        Reason.DELETING: set[Place](),
    }.items()
}
_FIELDS: Mapping[Reason, str] = {
    Reason.DOES_NOT_FIT: "status.plan",
    Reason.ROLLED_BACK: "status.rollout.failedRevision",
    Reason.GAP_EXPECTED: "status.rollout.reason",
    Reason.SURGE_FELL_BACK: "status.rollout.reason",
    Reason.UPDATE_WAITING: "status.rollout.updateWaiting",
    Reason.ADAPTER_NOT_SERVED: "status.adapters",
}
"""Another field of the status that says it."""


def places_of(reason: Reason) -> frozenset[Place]:
    """KeyError for a reason of which neither it nor its section is in the tables."""
    found = _OF_REASON.get(reason)
    return _OF_SECTION[reason.row.section] if found is None else found


def reported(reason: Reason) -> Reported:
    """Where it may be read, over all that it stands for."""
    places = [place.reported for place in places_of(reason)]
    conditions = {condition for place in places for condition in place.conditions}
    return Reported(
        tuple(condition for condition in Type if condition in conditions),
        is_failure=any(place.is_failure for place in places),
        has_event=any(place.has_event for place in places),
        field=_FIELDS.get(reason, ""),
    )


def fields_of(reason: Reason) -> tuple[str, ...]:
    """The fields that its texts name, each once."""
    texts = " ".join((reason.remedy, reason.summary, reason.row.look))
    return tuple(dict.fromkeys(_FIELD.findall(texts)))


def reasons_of(condition: Type) -> tuple[Reason, ...]:
    """Those that the condition may have."""
    return tuple(reason for reason in Reason if condition in reported(reason).conditions)


MEANINGS: Mapping[Type, str] = MappingProxyType(
    {
        Type.ACCEPTED: "The spec is valid, and the names of its children are free.",
        Type.FITS: "The plan's verdict about the memory; Unknown blocks nothing.",
        Type.AVAILABLE: "At least one replica, of any revision, serves.",
        Type.READY: "The current generation is fully rolled out and serves, or is scaled to zero as asked.",
        Type.RECONCILING: "Present only while true, never beside Stalled: a change is in progress.",
        Type.STALLED: "Present only while true, never beside Reconciling: nothing goes on without a change.",
        Type.AUTOSCALED: "Present while spec.scaling.autoscaling is set: whether replicas follow the load.",
        Type.ROUTING_READY: "Present while spec.routing asks for a router: whether prompts are routed.",
        Type.DEGRADED: "Present only while true, with any of the others: a part of the operator's work for this "
        "service fails; the message names it.",
    }
)
