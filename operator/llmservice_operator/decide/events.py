"""Kubernetes Events: only what a transition of the status says anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llmservice_operator.api.reasons import Reason
from llmservice_operator.decide.decision import Event

Json = Mapping[str, Any]

_SINGLE = 3
"""Adapters with an Event each; those beyond share one."""


def events(before: Json, after: Json) -> tuple[Event, ...]:
    """The Events for the step from one status to the next."""
    return (*_events(_by_type(before), _by_type(after), before, after), *_adapters(before, after))


def _events(old: dict[str, Json], new: dict[str, Json], before: Json, after: Json) -> Iterator[Event]:
    if _turned("Accepted", "False", old, new) or _other_words("Accepted", "False", old, new):
        yield _event("Warning", new["Accepted"])
    yield from _fits(old.get("Fits", {}), new.get("Fits", {}), new)
    scaled = new.get("Autoscaled", {})
    if scaled.get("reason") == Reason.HOLDING_UNAVAILABLE != old.get("Autoscaled", {}).get("reason"):
        yield _event("Warning", scaled)  # a replica runs that nobody asked for
    revision, earlier = ((status.get("rollout") or {}).get("revision") for status in (after, before))
    if revision and earlier and revision != earlier:
        yield Event("Normal", Reason.PROGRESSING, f"Rolling out revision {revision}.")
    if _turned("Ready", "True", old, new):
        yield _event("Normal", new["Ready"])
    known = {old.get("Stalled", {}).get("reason"), (before.get("failure") or {}).get("reason"), None}
    if new.get("Accepted", {}).get("status") == "False":
        known.add(new["Accepted"]["reason"])  # reported above, or before: a name that is taken is a failure as well
    failure = after.get("failure") or {}
    if failure.get("reason") not in known:
        yield Event("Warning", failure["reason"], f"{failure['message']} {failure['remedy']}")
    # A failure that may pass was reported when it began; that it has become final is no other one.
    known.add(failure.get("reason"))
    if new.get("Accepted", {}).get("status") == "True" and new.get("Stalled", {}).get("reason") not in known:
        yield _event("Warning", new["Stalled"])


def _fits(old: Json, new: Json, conditions: dict[str, Json]) -> Iterator[Event]:
    """A verdict that changed, or a first one that calls for action; one that stops the service is Stalled instead."""
    reason, before = new.get("reason"), old.get("reason")
    if reason in (None, before, Reason.INSPECTING_MODEL, Reason.POLICY_IGNORE):
        return
    if before in (None, Reason.INSPECTING_MODEL) and reason in (Reason.FITS, Reason.FACTS_MISSING):
        return
    if reason == conditions.get("Stalled", {}).get("reason"):
        return
    yield _event("Warning" if reason == Reason.DOES_NOT_FIT else "Normal", new)


def _adapters(before: Json, after: Json) -> Iterator[Event]:
    reported = {item.get("name"): item.get("message") for item in before.get("adapters") or ()}
    news = [
        item
        for item in after.get("adapters") or ()
        if item.get("message") not in (None, "", reported.get(item["name"]))
    ]
    for item in news[:_SINGLE]:
        yield Event("Warning", Reason.ADAPTER_NOT_SERVED, f"Adapter {item['name']}: {item['message']}")
    if more := [item["name"] for item in news[_SINGLE:]]:
        text = f"{len(more)} more adapters are not served; status.adapters says why: {', '.join(more)}"
        yield Event("Warning", Reason.ADAPTER_NOT_SERVED, text)


def _by_type(status: Json) -> dict[str, Json]:
    return {c.get("type", ""): c for c in status.get("conditions") or ()}


def _turned(type_: str, status: str, old: dict[str, Json], new: dict[str, Json]) -> bool:
    return new.get(type_, {}).get("status") == status and old.get(type_, {}).get("status") != status


def _other_words(type_: str, status: str, old: dict[str, Json], new: dict[str, Json]) -> bool:
    both = (old.get(type_, {}), new.get(type_, {}))
    return all(c.get("status") == status for c in both) and both[0].get("message") != both[1].get("message")


def _event(kind: str, condition: Json) -> Event:
    return Event(kind, str(condition["reason"]), str(condition["message"]))
