"""The recorded revisions of a service: ControllerRevisions and the status, and what two differ in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kubeloop.resources import CONTROLLER_REVISION
from llmservice_api.constants import REVISION_LABEL, selector_text
from llmservice_api.errors import InvalidSpec
from llmservice_api.service import parse_spec
from llmservice_operator.manifests.revision import with_recorded_fields
from llmservice_operator.revisions import missing_protection
from llmservice_runtime.contract import SERVER_CONTAINER

from .api import Api, Json
from .services import rollout_of


@dataclass(frozen=True, slots=True)
class Revision:
    """One recorded pod template. `created` is as the API server writes it."""

    label: str
    number: int
    created: str
    server: Server
    made_of: Json | None = None
    """The fields of the spec that need a restart, as they were; None: an early release did not record them."""

    @classmethod
    def from_object(cls, found: Json) -> Revision:
        metadata, data = found["metadata"], found.get("data") or {}
        template = data.get("template") or {}
        return cls(
            label=metadata["labels"][REVISION_LABEL],
            number=int(found["revision"]),
            created=metadata["creationTimestamp"],
            server=server_of(template),
            made_of=(data.get("chosen") or {}).get("spec"),
        )

    def lacks(self, service: Json) -> tuple[str, ...]:
        """Fields that protect, which the service's spec asks for and this revision was made without; empty where one
        of the two cannot be read."""
        try:
            now = parse_spec(service["spec"])
            return () if self.made_of is None else missing_protection(with_recorded_fields(now, self.made_of), now)
        except InvalidSpec:
            return ()

    def changes_from(self, before: Revision) -> str:
        """What the server is started with otherwise than before."""
        return changes_between(before.server, self.server) or "nothing that the server is started with"


async def recorded(kube: Api, namespace: str, name: str) -> tuple[Revision, ...]:
    """Those of one service, the latest first. ControllerRevisions of others, such as a StatefulSet whose pods have the
    service's label, have no label of a revision."""
    selector = selector_text(name)
    found = await kube.list_all(CONTROLLER_REVISION, namespace, label_selector=selector)
    own = [one for one in found if REVISION_LABEL in one["metadata"]["labels"]]
    return tuple(sorted(map(Revision.from_object, own), key=lambda revision: -revision.number))


def pinned_of(service: Json) -> str | None:
    """spec.rollout.pinnedRevision."""
    pinned: str | None = (service["spec"].get("rollout") or {}).get("pinnedRevision")
    return pinned


def roles_of(label: str, service: Json) -> str:
    """What the service does with this revision, such as `runs, pinned`."""
    rollout = rollout_of(service)
    roles = {
        "runs": rollout.get("revision"),
        "last rolled out": rollout.get("stableRevision"),
        "failed": rollout.get("failedRevision"),
        "pinned": pinned_of(service),
    }
    return ", ".join(word for word, holder in roles.items() if holder == label)


class Server(NamedTuple):
    """Image and arguments of the server's container."""

    image: str = ""
    args: tuple[str, ...] = ()


def server_of(template: Mapping[str, Any]) -> Server:
    """Empty where the template has no such container."""
    containers = (template.get("spec") or {}).get("containers") or ()
    server: Mapping[str, Any] = next((each for each in containers if each["name"] == SERVER_CONTAINER), {})
    return Server(server.get("image", ""), tuple(server.get("args") or ()))


def changes_between(before: Server, after: Server) -> str:
    """What the later one is started with otherwise; empty: nothing."""
    changes = [f"image: {before.image} -> {after.image}"] if after.image != before.image else []
    here, there = options_of(after.args), options_of(before.args)
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
