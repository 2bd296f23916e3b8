"""What is recorded of a service's revisions: ControllerRevisions and the status, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmservice_operator.api.constants import REVISION_LABEL
from llmservice_operator.build.meta import selector_text
from llmservice_operator.kube.resources import CONTROLLER_REVISION
from llmservice_runtime.contract import SERVER_CONTAINER

from .api import Api, Json
from .services import rollout_of


@dataclass(frozen=True, slots=True)
class Revision:
    """One recorded pod template. `created` is as the API server writes it."""

    label: str
    number: int
    created: str
    image: str
    args: tuple[str, ...]

    @classmethod
    def from_object(cls, found: Json) -> Revision:
        metadata, template = found["metadata"], (found.get("data") or {}).get("template") or {}
        containers = (template.get("spec") or {}).get("containers") or ()
        server: Json = next((each for each in containers if each["name"] == SERVER_CONTAINER), {})
        return cls(
            label=metadata["labels"][REVISION_LABEL],
            number=int(found["revision"]),
            created=metadata["creationTimestamp"],
            image=server.get("image", ""),
            args=tuple(server.get("args") or ()),
        )

    def changes_from(self, before: Revision) -> str:
        """What the server is started with otherwise than before."""
        changes = [f"image: {before.image} -> {self.image}"] if self.image != before.image else []
        here, there = options_of(self.args), options_of(before.args)
        for name in dict.fromkeys([*there, *here]):
            if name not in there:
                changes.append(f"{name}: {here[name] or 'set'}")
            elif name not in here:
                changes.append(f"{name}: {there[name] or 'set'} -> not set")
            elif here[name] != there[name]:
                changes.append(f"{name}: {there[name]} -> {here[name]}")
        return ", ".join(changes) or "nothing that the server is started with"


def options_of(args: Sequence[str]) -> Mapping[str, str]:
    """By their names; `--name value` and `--name=value` are the same, and a flag alone has an empty value."""
    options: dict[str, str] = {}
    name = ""
    for arg in args:
        if arg.startswith("--") and len(arg) > 2:
            name, _, value = arg.partition("=")
            options[name] = value
        elif name:
            options[name] = f"{options[name]} {arg}".strip()
    return options


async def recorded(kube: Api, namespace: str, name: str) -> tuple[Revision, ...]:
    """Those of one service, the latest first."""
    selector = selector_text(name)
    found = await kube.list_all(CONTROLLER_REVISION, namespace, label_selector=selector)
    return tuple(sorted(map(Revision.from_object, found), key=lambda revision: -revision.number))


def pinned_of(service: Json) -> str | None:
    """spec.rollout.pinnedRevision."""
    pinned: str | None = (service["spec"].get("rollout") or {}).get("pinnedRevision")
    return pinned


def standing(label: str, service: Json) -> str:
    """What this revision is to the service, in a few words."""
    rollout = rollout_of(service)
    told = {
        "runs": rollout.get("revision"),
        "last rolled out": rollout.get("stableRevision"),
        "failed": rollout.get("failedRevision"),
        "pinned": pinned_of(service),
    }
    return ", ".join(word for word, holder in told.items() if holder == label)
