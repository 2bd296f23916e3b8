"""A decision as a document that can be printed: which objects there are to be, what changes, why, and what restarts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmservice_operator.decide.decision import Decision

Json = Mapping[str, Any]


def document(decision: Decision) -> dict[str, Any]:
    """JSON values only. `objects` are all manifests in the order in which they are applied; those without `apply`
    are as they should be. What is empty is left out."""
    applied = {(apply.kind, apply.name): apply for apply in decision.apply}
    desired = {(m["kind"], m["metadata"]["name"]): m for m in decision.desired}
    objects = []
    for which, manifest in ({key: apply.manifest for key, apply in applied.items()} | desired).items():
        why = {"apply": applied[which].reason} if which in applied else {}
        objects.append({**why, "manifest": manifest})
    shown: dict[str, Any] = {
        "objects": objects,
        "adopt": [f"{adopt.kind} {adopt.name}" for adopt in decision.adopt],
        "prune": [{"object": f"{prune.kind} {prune.name}", "reason": prune.reason} for prune in decision.prune],
        "restart": _restart(decision),
        "status": decision.status,
        "events": [[event.type, event.reason, event.message] for event in decision.events],
        "notes": list(decision.notes),
        "requeueAfterSeconds": decision.requeue_after,
    }
    return {name: value for name, value in shown.items() if value not in (None, [], {})}


def _restart(decision: Decision) -> dict[str, str] | None:
    if decision.restart is None:
        return None
    found = decision.restart
    return {"from": found.running, "to": found.desired, "strategy": found.strategy, "reason": found.reason}
