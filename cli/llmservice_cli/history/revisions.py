"""What is recorded of a service's revisions: ControllerRevisions and the status, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmservice_operator.build.meta import REVISION_LABEL, SERVICE_LABEL
from llmservice_operator.kube.resources import CONTROLLER_REVISION
from llmservice_runtime.contract import SERVER_CONTAINER

if TYPE_CHECKING:
    from llmservice_cli.api import Api

Json = Mapping[str, Any]


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
        image, args = _server(template)
        return cls(
            label=metadata["labels"][REVISION_LABEL],
            number=int(found["revision"]),
            created=metadata["creationTimestamp"],
            image=image,
            args=args,
        )

    def changes_from(self, before: Revision) -> str:
        """What the server is started with otherwise than before."""
        changes = _changes((before.image, before.args), (self.image, self.args))
        return changes or "nothing that the server is started with"


def server_changes(before: Json, after: Json) -> str:
    """What the server is started with otherwise by the second of two pod templates; empty: nothing."""
    return _changes(_server(before), _server(after))


def _server(template: Json) -> tuple[str, tuple[str, ...]]:
    """Image and arguments of the server's container."""
    containers = (template.get("spec") or {}).get("containers") or ()
    server: Json = next((each for each in containers if each["name"] == SERVER_CONTAINER), {})
    return server.get("image", ""), tuple(server.get("args") or ())


def _changes(before: tuple[str, tuple[str, ...]], after: tuple[str, tuple[str, ...]]) -> str:
    changes = [f"image: {before[0]} -> {after[0]}"] if before[0] != after[0] else []
    here, there = options_of(after[1]), options_of(before[1])
    for name in dict.fromkeys([*there, *here]):
        if name not in there:
            changes.append(f"{name}: {here[name] or 'set'}")
        elif name not in here:
            changes.append(f"{name}: {there[name] or 'set'} -> not set")
        elif here[name] != there[name]:
            changes.append(f"{name}: {there[name]} -> {here[name]}")
    return ", ".join(changes)


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
    selector = f"{SERVICE_LABEL}={name}"
    pages = [page async for page in kube.list_pages(CONTROLLER_REVISION, namespace, label_selector=selector)]
    found = [Revision.from_object(item) for page in pages for item in page.get("items") or ()]
    return tuple(sorted(found, key=lambda revision: -revision.number))


def rollout_of(service: Json) -> Json:
    """status.rollout, empty where nothing is known yet."""
    rollout: Json = (service.get("status") or {}).get("rollout") or {}
    return rollout


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
