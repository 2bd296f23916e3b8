"""A decision as it is printed: its objects, its conditions and what restarts; for people, as manifests and as JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import yaml
from llmservice_api.reasons import Reason
from llmservice_operator.decision import Apply, Decision
from llmservice_operator.decision import Restart as RevisionChange
from llmservice_operator.facts.children import RevisionFacts
from llmservice_operator.observe.observed import Observed
from llmservice_operator.workload.kinds import is_workload
from llmservice_operator.workload.port import WorkloadFacts

from llmservice_cli.documents import written
from llmservice_cli.manifests import Json
from llmservice_cli.masking import masked, redactor_of
from llmservice_cli.revisions import changes_between, server_of
from llmservice_cli.terminal import is_styled

from .difference import fields, restricted

ChildId = tuple[str, str]
"""(kind, name)"""

_COLOURS = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}
_PLAIN = "\033[0m"
CREATE, CHANGE, APPLY, ADOPT, DELETE, UNCHANGED = "create", "change", "apply", "adopt", "delete", "unchanged"
"""APPLY: what may be there already, and was not read."""


@dataclass(frozen=True, slots=True)
class Change:
    """One child: what the operator does with it, and why."""

    action: str
    kind: str
    name: str
    reason: str = ""
    manifest: Json | None = None
    """What is applied; None: nothing is."""
    before: Json | None = None
    """The live object as far as the apply may change it; None: there is none, or it was not read."""

    @property
    def id(self) -> ChildId:
        return self.kind, self.name


@dataclass(frozen=True, slots=True)
class Restart:
    """Whether running pods are replaced: how many, and the sentence that says so and why."""

    pods: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Preview:
    """What the operator would do about one LLMService."""

    namespace: str
    name: str
    changes: tuple[Change, ...]
    conditions: tuple[Json, ...]
    restart: Restart
    notes: tuple[str, ...]
    diffs: Mapping[ChildId, str]
    """Unified diffs, where a cluster was read."""
    spec: Json
    """The LLMService's: messages may quote its secrets."""

    @classmethod
    def of(
        cls,
        obj: Json,
        changes: Sequence[Change],
        status: Json,
        restart: Restart,
        notes: Iterable[str] = (),
        diffs: Mapping[ChildId, str] = MappingProxyType({}),
    ) -> Self:
        """`status` is the LLMService's once the decision is carried out."""
        metadata, conditions = obj["metadata"], tuple(status.get("conditions") or ())
        return cls(
            metadata["namespace"],
            metadata["name"],
            tuple(changes),
            conditions,
            restart,
            tuple(notes),
            diffs,
            obj["spec"],
        )

    @property
    def is_accepted(self) -> bool:
        return self._status_of("Accepted") != "False"

    @property
    def is_stalled(self) -> bool:
        return self._status_of("Stalled") == "True"

    @property
    def is_held(self) -> bool:
        return holding({"conditions": self.conditions}) is not None

    @property
    def differs(self) -> bool:
        """Whether the operator would write a child."""
        return any(change.action != UNCHANGED for change in self.changes)

    def _status_of(self, type_: str) -> object:
        return next((each["status"] for each in self.conditions if each["type"] == type_), None)

    def _relevant_conditions(self) -> Iterator[Json]:
        """The conditions of the decision itself: the others wait for pods, or repeat a reason."""
        known = {"Progressing"}
        for each in self.conditions:
            is_not_scaled = each["type"] == "Autoscaled" and each["status"] == "False"
            if (
                is_not_scaled
                or each["type"] in ("Accepted", "Fits")
                or (each["type"] in ("Stalled", "Reconciling") and each["reason"] not in known)
            ):
                known.add(each["reason"])
                yield each

    def document(self) -> dict[str, Any]:
        """As JSON; names are only ever added."""
        return {
            "namespace": self.namespace,
            "name": self.name,
            "accepted": self.is_accepted,
            "restart": {"pods": self.restart.pods, "reason": self.restart.sentence},
            "conditions": [
                {key: each[key] for key in ("type", "status", "reason", "message")} for each in self.conditions
            ],
            "objects": [
                {
                    "action": change.action,
                    "kind": change.kind,
                    "name": change.name,
                    "reason": change.reason,
                    "manifest": change.manifest,
                }
                | ({"diff": self.diffs[change.id]} if change.id in self.diffs else {})
                for change in self.changes
            ],
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        yield f"{self.name} in namespace {self.namespace}: {self.restart.sentence}"
        for each in self._relevant_conditions():
            yield f"  {each['type']:<10} {each['status']}: {each['reason']}. {each['message']}"
        width = max((len(f"{change.kind} {change.name}") for change in self.changes), default=0)
        for change in self.changes:
            what = f"{change.kind} {change.name}"
            yield f"  {change.action:<10} {what:<{width}}  {change.reason}".rstrip()
        yield from (f"  note       {note}" for note in self.notes)


def holding(status: Json) -> Json | None:
    """The condition for which nothing of what the spec asks for is made until it is changed; None: there is none."""
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    fits, stalled = conditions.get("Fits") or {}, conditions.get("Stalled") or {}
    is_held = (fits.get("status"), stalled.get("status")) == ("False", "True") and fits["reason"] == stalled["reason"]
    return fits if is_held else None


def changes(
    decision: Decision, observed: Observed, uid: str, live: Mapping[ChildId, Json], unread: Collection[ChildId] = ()
) -> tuple[Change, ...]:
    """In the order in which the operator makes them; then the service's own children that stay as they are.

    `live` are the objects that exist and were read, whoever owns them; of those in `unread` nothing is known.
    """
    made = [
        *(Change(ADOPT, each.kind, each.name, "an earlier service of this name left it") for each in decision.adopt),
        *(_applied(each, live.get((each.kind, each.name)), unread) for each in decision.apply),
        *(Change(DELETE, each.kind, each.name, each.reason) for each in decision.prune),
    ]
    touched = {change.id for change in made}
    stays = (
        Change(UNCHANGED, child.kind, child.name)
        for child in observed.children()
        if child.owner_uid == uid and (child.kind, child.name) not in touched and child.kind != RevisionFacts.kind
    )
    return (*made, *stays)


def _applied(apply: Apply, live: Json | None, unread: Collection[ChildId]) -> Change:
    """The reason of a change is the fields that differ: the operator's own names but the first."""
    if live is None:
        action = APPLY if (apply.kind, apply.name) in unread else CREATE
        return Change(action, apply.kind, apply.name, apply.reason, apply.manifest)
    before = restricted(apply.manifest, live)
    return Change(
        CHANGE, apply.kind, apply.name, fields(before, apply.manifest) or apply.reason, apply.manifest, before
    )


def restart_of(
    changes: Sequence[Change], step: RevisionChange | None, live: WorkloadFacts | None, status: Json
) -> Restart:
    """Which running pods a decision replaces, and why: by the change of the Deployment, if there is one.

    `step` is the decision's, and `status` the LLMService's once the decision is carried out.
    """
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    if (conditions.get("Accepted") or {}).get("status") == "False":
        stays = "nothing is made" if live is None else "no restart, and what runs stays as it is"
        return Restart(0, f"{stays}: the spec is refused")
    if live is not None and (held := holding(status)) is not None:
        stays = "no restart, and what runs stays as it is: the edit is held until it is changed"
        return Restart(0, f"{stays}: {held['reason']}. {held['message']}")
    change = next((each for each in changes if is_workload(each.kind) and each.manifest is not None), None)
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


def _none(live: WorkloadFacts | None, conditions: Mapping[str, Json], status: Json) -> str:
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


def show(previews: Sequence[Preview], output: str) -> None:
    """json, yaml, table, diff, or `manifests` with the rest as comments."""
    documents = [preview.document() for preview in previews]
    redactor = redactor_of(documents, [preview.spec for preview in previews])
    if output in ("json", "yaml"):
        print(written(output, {"version": 1, "services": masked(documents, redactor)}), end="")
        return
    for index, preview in enumerate(previews):
        lines = [redactor.clean(line) for line in preview.lines()]
        if output == "manifests":
            print("\n".join(f"# {line}" for line in lines))
            for change in preview.changes:
                if change.manifest is not None:
                    text = yaml.safe_dump(masked(change.manifest, redactor), sort_keys=False, width=2**16)
                    print(f"---\n{text}", end="")
            continue
        print("\n".join([*([""] if index else []), *lines]))
        for diff in preview.diffs.values() if output == "diff" else ():
            print("\n".join(["", *_coloured(redactor.clean(diff).splitlines())]))


def _coloured(lines: Iterable[str]) -> Iterable[str]:
    """On a terminal that shows colours, else as they are."""
    if not is_styled():
        return lines
    return [f"{_COLOURS[line[0]]}{line}{_PLAIN}" if line[:1] in _COLOURS else line for line in lines]
