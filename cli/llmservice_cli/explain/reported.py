"""Where each reason and condition is reported. The texts of a reason are its row in `api.reasons`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from llmservice_operator.api import reason_sections as sections
from llmservice_operator.api.conditions import ConditionType as Type
from llmservice_operator.api.reasons import Reason
from llmservice_runtime.failures.reasons import END, MODEL, SPEC, START, Section

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


_UNREADY = (Type.READY, Type.RECONCILING, Type.STALLED)
_FAILURE = Reported(_UNREADY, is_failure=True)
_STARTING = Reported((Type.READY, Type.RECONCILING), has_event=False)
_AT_ZERO = Reported((Type.READY, Type.AVAILABLE), has_event=False)
_EVENT = Reported()

_OF_SECTION: Mapping[Section, Reported] = {
    **dict.fromkeys((sections.PLACE, sections.POD, MODEL, START, END, sections.NODE), _FAILURE),
    SPEC: Reported((Type.ACCEPTED, Type.READY, Type.STALLED)),
    sections.PLAN: Reported((Type.FITS,)),
    sections.AUTOSCALED: Reported((Type.AUTOSCALED,)),
    sections.INTERNAL: Reported((Type.READY, Type.STALLED, Type.DEGRADED)),
}
_OF_REASON: Mapping[Reason, Reported] = {
    Reason.NO_ENDPOINTS: Reported((Type.AVAILABLE, *_UNREADY), is_failure=True),
    Reason.NAME_CONFLICT: Reported((Type.ACCEPTED, Type.READY, Type.STALLED), is_failure=True),
    Reason.DOES_NOT_FIT: Reported((Type.FITS, Type.READY, Type.STALLED), field="status.plan"),
    Reason.INSPECTING_MODEL: Reported((Type.FITS, Type.READY, Type.RECONCILING), has_event=False),
    Reason.POLICY_IGNORE: Reported((Type.FITS,), has_event=False),
    Reason.PROGRESS_DEADLINE_EXCEEDED: _FAILURE,
    Reason.NO_REPLICA_READY: Reported((Type.AVAILABLE,), has_event=False),
    Reason.WAITING_FOR_GPU: Reported(_UNREADY),
    Reason.ROLLED_BACK: Reported((Type.READY, Type.STALLED), field="status.rollout.failedRevision"),
    Reason.GAP_EXPECTED: Reported(field="status.rollout.reason"),
    Reason.SURGE_FELL_BACK: Reported(field="status.rollout.reason"),
    Reason.UPDATE_WAITING: Reported(field="status.rollout.updateWaiting"),
    Reason.ADAPTER_NOT_SERVED: Reported(field="status.adapters"),
    Reason.STREAMS_ENDED: _EVENT,
    Reason.SCALED: _EVENT,
    Reason.VALID: Reported((Type.ACCEPTED,), has_event=False),
    Reason.ROLLED_OUT: Reported((Type.READY,), has_event=False),
    Reason.REPLICAS_READY: Reported((Type.AVAILABLE,), has_event=False),
    Reason.PROGRESSING: Reported((Type.READY, Type.RECONCILING)),
    Reason.STARTING: _STARTING,
    Reason.STARTING_SLOWLY: _STARTING,
    Reason.SCALED_TO_ZERO: _AT_ZERO,
    Reason.IDLE: _AT_ZERO,
    Reason.PAUSED: Reported((Type.ACCEPTED, Type.READY), has_event=False),
    Reason.AUTOSCALING: Reported((Type.AUTOSCALED,)),
    Reason.DELETING: Reported(has_event=False),
}


def reported(reason: Reason) -> Reported:
    """KeyError for a reason of which neither it nor its section is in the tables."""
    return _OF_REASON.get(reason) or _OF_SECTION[reason.row.section]


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
        Type.DEGRADED: "Present only while true, with any of the others: a part of the operator's work for this "
        "service fails; the message names it.",
    }
)
