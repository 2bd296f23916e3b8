"""kopf registrations: an event becomes a projection in the cache and, where that changed, a key. Nothing else.

Only indexing and `on.event` handlers are used: they add no finalizer and no annotation to anybody's object, and kopf
never patches what it watches. The index holds nothing itself; it is there because kopf runs its handlers before all
others and lets those wait until every kind has been listed once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Self

import kopf

from llmservice_operator.api.constants import GROUP
from llmservice_operator.api.service import Key
from llmservice_operator.control.cache import Cache
from llmservice_operator.control.kinds import WATCHED, selector
from llmservice_operator.kube.credentials import Credentials
from llmservice_operator.kube.resources import Resource

FIRST_LISTING = 30.0
"""After the caches are warm, listed objects that still come in for so long belong to the first listing."""


class Intake:
    """kopf's memo: where events go."""

    def __init__(
        self,
        cache: Cache,
        *,
        changed: Callable[[Key], None],
        relisted: Callable[[str], None],
        warm: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._changed = changed
        self._relisted = relisted
        self._warm = warm
        self._clock = clock
        self._warm_since: float | None = None

    def __copy__(self) -> Self:
        """kopf copies the memo for each object; there is but one."""
        return self

    def present(self, resource: Resource, raw: dict[str, Any]) -> None:
        """An object was listed, added or changed."""
        self._enqueue(self._cache.update(resource.kind, raw))

    def event(self, resource: Resource, kind: str | None, raw: dict[str, Any]) -> None:
        """After the indexing of every event; None: the object was listed."""
        if self._warm_since is None:
            self._warm_since = self._clock()
            self._warm()
        if kind == "DELETED":
            metadata = raw["metadata"]
            self._enqueue(self._cache.remove(resource.kind, metadata["namespace"], metadata["name"], metadata["uid"]))
        elif kind is None and self._clock() - self._warm_since > FIRST_LISTING:
            self._relisted(resource.kind)

    def _enqueue(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._changed(key)


def registry(credentials: Credentials) -> kopf.OperatorRegistry:
    """All registrations, in a registry of their own."""
    made = kopf.OperatorRegistry()
    for resource in WATCHED:
        _register(made, resource)

    @kopf.on.login(registry=made)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        # Called again whenever the API server does not accept the token any more.
        credentials.token.forget()
        return kopf.ConnectionInfo(
            server=credentials.server,
            ca_data=credentials.ca,
            insecure=credentials.insecure,
            token=credentials.token(),
            certificate_data=credentials.client_certificate,
            private_key_data=credentials.client_key,
            default_namespace=credentials.namespace,
        )

    return made


def _register(made: kopf.OperatorRegistry, resource: Resource) -> None:
    where = (resource.group, resource.version, resource.plural)

    @kopf.index(*where, id=f"index-{resource.plural}", registry=made)
    async def index(body: kopf.Body, memo: Intake, **_: Any) -> None:
        memo.present(resource, dict(body))

    @kopf.on.event(*where, id=f"event-{resource.plural}", registry=made)
    async def event(event: kopf.RawEvent, memo: Intake, **_: Any) -> None:
        memo.event(resource, event["type"], dict(event["object"]))


def settings() -> kopf.OperatorSettings:
    """kopf as an informer: it watches and writes nothing."""
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    # An event-only operator would strip kopf's default finalizer from objects of another kopf operator.
    made.persistence.finalizer = f"{GROUP}/never-set"
    # Without it kopf lists and watches CRDs and namespaces, for which we ask no right.
    made.scanning.disabled = True
    made.watching.server_timeout = 600
    made.watching.connect_timeout = 5.0
    made.watching.chunk_size = 500
    made.networking.request_timeout = 30.0
    made.networking.connect_timeout = 5.0
    made.networking.error_backoffs = (0.5, 1, 2, 3, 5, 5, 10, 10, 10, 10)
    made.queueing.exit_timeout = 0.5
    for resource in WATCHED:
        if selector(resource):
            made.watching.label_selectors[resource.group, resource.version, resource.plural] = selector(resource)
    return made
