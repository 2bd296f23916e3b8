"""kopf registrations: an event becomes a projection in the cache and, where that changed, a key. Nothing else.

Only `on.event` handlers are used: they add no finalizer and no annotation to anybody's object, and kopf never patches
what it watches. kopf's own indices are not: while it lists, every object's handler waits for all others' (work that
grows with the square of their number), and what they tell, that everything was listed, `Resync.warm` finds out itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

import kopf

from llmservice_operator.api.constants import GROUP
from llmservice_operator.api.service import Key
from llmservice_operator.control.cache import Cache
from llmservice_operator.control.kinds import WATCHED, selector
from llmservice_operator.kube.credentials import Credentials
from llmservice_operator.kube.resources import Resource


class Intake:
    """kopf's memo: where events go."""

    def __init__(
        self,
        cache: Cache,
        *,
        changed: Callable[[Key], None],
        relisted: Callable[[str], None],
        arrived: Callable[[], None],
    ) -> None:
        self._cache = cache
        self._changed = changed
        self._relisted = relisted
        self._arrived = arrived

    def __copy__(self) -> Self:
        """kopf copies the memo for each object; there is but one."""
        return self

    def event(self, resource: Resource, kind: str | None, raw: dict[str, Any]) -> None:
        """An object was listed (None), added, changed or deleted."""
        if kind == "DELETED":
            metadata = raw["metadata"]
            keys = self._cache.remove(resource.kind, metadata["namespace"], metadata["name"], metadata["uid"])
        else:
            keys = self._cache.update(resource.kind, raw)
        self._enqueue(keys)
        if kind is None:
            self._relisted(resource.kind)
        self._arrived()

    def _enqueue(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._changed(key)


class Forgetful(kopf.DiffBaseStorage, kopf.ProgressStorage):
    """kopf keeps nothing of what it saw: nobody asks for differences, and copies of all bodies were half its work."""

    def build(self, **_: Any) -> Any:
        """No essence."""
        return {}

    def clear(self, *, essence: Any) -> Any:
        """Nothing in it."""
        return essence

    def fetch(self, **_: Any) -> None:
        """Nothing was stored."""

    def store(self, **_: Any) -> None:
        """Nothing is."""

    def purge(self, **_: Any) -> None:
        """Nothing to."""

    def touch(self, **_: Any) -> None:
        """Never: it would patch the object."""


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
    made.persistence.diffbase_storage = Forgetful()
    made.persistence.progress_storage = Forgetful()
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
