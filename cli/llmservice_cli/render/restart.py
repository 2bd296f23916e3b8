"""Which running pods a decision replaces, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmservice_operator.api.reasons import Reason
from llmservice_operator.decide.decision import Restart as RevisionChange
from llmservice_operator.observe.projections.children import DeploymentFacts

from llmservice_cli.manifests import Json
from llmservice_cli.server import changes_between, server_of

from .difference import fields
from .preview import Change, Restart, holding


def restart_of(
    changes: Sequence[Change], step: RevisionChange | None, live: DeploymentFacts | None, status: Json
) -> Restart:
    """Of the change of the Deployment, if there is one.

    `step` is the decision's, and `status` the LLMService's once the decision is carried out.
    """
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    if (conditions.get("Accepted") or {}).get("status") == "False":
        stays = "nothing is made" if live is None else "no restart, and what runs stays as it is"
        return Restart(0, f"{stays}: the spec is refused")
    if live is not None and (held := holding(status)) is not None:
        stays = "no restart, and what runs stays as it is: the edit is held until it is changed"
        return Restart(0, f"{stays}: {held['reason']}. {held['message']}")
    change = next((each for each in changes if each.kind == DeploymentFacts.kind and each.manifest is not None), None)
    if change is None or change.manifest is None:
        return Restart(0, _none(live, conditions, status))
    replicas = change.manifest["spec"]["replicas"]
    if live is None:
        return Restart(0, f"no restart: nothing runs yet, and {_pods(replicas)} started")
    before: Json = ((change.before or {}).get("spec") or {}).get("template") or {}
    after: Json = change.manifest["spec"]["template"]
    differing = fields(before, after)
    if not differing:
        scaled = "" if replicas == live.spec_replicas else f"; replicas: {live.spec_replicas} -> {replicas}"
        return Restart(0, f"no restart: the pod template stays{scaled}")
    if not live.replicas:
        return Restart(0, "no restart: the pod template changes, and no pod runs")
    why = changes_between(server_of(before), server_of(after)) or differing
    to = f"revision {step.desired}, strategy {step.strategy}" if step is not None else "the same revision"
    reason = f". {step.reason}" if step is not None and step.reason else ""
    return Restart(live.replicas, f"RESTART: {_pods(live.replicas)} replaced by {to}: {why}{reason}")


def _pods(count: int) -> str:
    return "1 pod is" if count == 1 else f"{count} pods are"


def _none(live: DeploymentFacts | None, conditions: Mapping[str, Json], status: Json) -> str:
    ready, rollout = (conditions.get("Ready") or {}).get("reason"), status.get("rollout") or {}
    # What keeps the spec back shows in Accepted or Fits; other reasons speak of pods.
    is_held = ready in {(conditions.get(each) or {}).get("reason") for each in ("Accepted", "Fits")}
    held = f" ({ready})" if is_held else ""
    if ready == Reason.INSPECTING_MODEL:
        held = f" yet{held}: the model is inspected first, and --config shows what follows"
    if live is None:
        return f"no pod is started{held}"
    if waits := rollout.get("updateWaiting") or rollout.get("updateBlocked"):
        return f"no restart yet: {waits}"
    if rollout.get("updatePending"):
        return f"no restart{held}; an update is pending, and starts when `llmservice update` asks for it"
    return f"no restart{held}"
