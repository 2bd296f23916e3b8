"""What is recorded of a service's revisions: ControllerRevisions and the status, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmservice_operator.build.meta import REVISION_LABEL, SERVICE_LABEL
from llmservice_operator.kube.resources import CONTROLLER_REVISION

from llmservice_cli.api import Api
from llmservice_cli.server import Server, changes_between, server_of

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Revision:
    """One recorded pod template. `created` is as the API server writes it."""

    label: str
    number: int
    created: str
    server: Server

    @classmethod
    def from_object(cls, found: Json) -> Revision:
        metadata, template = found["metadata"], (found.get("data") or {}).get("template") or {}
        return cls(
            label=metadata["labels"][REVISION_LABEL],
            number=int(found["revision"]),
            created=metadata["creationTimestamp"],
            server=server_of(template),
        )

    def changes_from(self, before: Revision) -> str:
        """What the server is started with otherwise than before."""
        return changes_between(before.server, self.server) or "nothing that the server is started with"


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
