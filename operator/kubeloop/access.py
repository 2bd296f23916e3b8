"""Access to /metrics: a bearer token that the API server accepts, of a user who may `get` that path.

As in controller-runtime's WithAuthenticationAndAuthorization: a TokenReview identifies the user, a SubjectAccessReview
checks the path. Results are cached for a bounded time and number of tokens, and few reviews run at a time, so that
invalid tokens cannot flood the API server.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from kubeloop.errors import KubeError
from kubeloop.resources import Resource
from kubeloop.transport import Transport

logger = logging.getLogger(__name__)

TOKEN_REVIEW = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview")
ACCESS_REVIEW = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview")

KEPT_SECONDS, REFUSAL_KEPT_SECONDS = 60.0, 10.0
"""How long a result is cached. A revoked right ends within the first."""
KEPT = 64
"""Accepted tokens in the cache, and as many refused ones."""
AT_A_TIME, WAITING = 2, 16
"""Reviews that run, and tokens that wait for one: the next is refused with 429."""
QUESTION_SECONDS = 5.0


class Refusal(NamedTuple):
    """The answer to a request that is refused."""

    status: int
    text: str


Guard = Callable[[str | None], Awaitable[Refusal | None]]
"""Of the Authorization header of a request; None: it is answered."""

NO_TOKEN = Refusal(401, "send a bearer token of the cluster: Authorization: Bearer TOKEN")
UNKNOWN_TOKEN = Refusal(401, "the cluster does not know this token")
BUSY = Refusal(429, "too many unknown tokens at a time; try again")


async def open_to_all(_: str | None) -> None:
    """Without authentication."""


class Access:
    """A guard for one path."""

    def __init__(
        self, transport: Transport, path: str = "/metrics", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._transport, self._path, self._clock = transport, path, clock
        # Apart, so that invalid tokens evict no valid one.
        self._allowed: OrderedDict[bytes, float] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, Refusal]] = OrderedDict()
        self._asking = asyncio.Semaphore(AT_A_TIME)
        self._waiting = 0
        self._failure = ""

    async def __call__(self, header: str | None) -> Refusal | None:
        """By the Authorization header."""
        kind, _, token = (header or "").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            return NO_TOKEN
        # Only hashes of tokens are kept.
        which = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        if self._is_known(which):
            return self._answer(which)
        if self._waiting >= WAITING and which not in self._allowed:
            return BUSY
        self._waiting += 1
        try:
            async with self._asking:
                # Another request may have been answered meanwhile.
                return self._answer(which) if self._is_known(which) else await self._ask(which, token.strip())
        finally:
            self._waiting -= 1

    def _is_known(self, which: bytes) -> bool:
        until = self._allowed.get(which) or self._refused.get(which, (0.0, None))[0]
        return self._clock() < until

    def _answer(self, which: bytes) -> Refusal | None:
        return None if which in self._allowed else self._refused[which][1]

    async def _ask(self, which: bytes, token: str) -> Refusal | None:
        try:
            answer = await self._review(token)
        except KubeError as error:
            if str(error) != self._failure:
                logger.warning("cannot find out who may read %s: %s", self._path, error)
            self._failure = str(error)
            return Refusal(503, "the API server cannot be asked whose token this is; see the operator's log")
        self._failure = ""
        self._allowed.pop(which, None)
        self._refused.pop(which, None)
        if answer is None:
            self._allowed[which] = self._clock() + KEPT_SECONDS
        else:
            self._refused[which] = (self._clock() + REFUSAL_KEPT_SECONDS, answer)
        for kept in (self._allowed, self._refused):
            while len(kept) > KEPT:
                kept.popitem(last=False)
        return answer

    async def _review(self, token: str) -> Refusal | None:
        status = await self._create(TOKEN_REVIEW, {"token": token})
        user: Mapping[str, Any] = status.get("user") or {}
        if status.get("authenticated") is not True or not user.get("username"):
            return UNKNOWN_TOKEN
        spec = {
            "user": user["username"],
            "uid": user.get("uid") or "",
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": self._path, "verb": "get"},
        }
        if (await self._create(ACCESS_REVIEW, spec)).get("allowed") is True:
            return None
        return Refusal(403, f"{user['username']} may not get {self._path}: grant it by a role with that nonResourceURL")

    async def _create(self, resource: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        made = await self._transport.request(
            "create", resource, resource.path(None), body=body, timeout=QUESTION_SECONDS
        )
        return made.get("status") or {}
