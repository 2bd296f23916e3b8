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

ALLOWED_SECONDS, REFUSED_SECONDS = 60.0, 10.0
"""Seconds that a result is cached. A revoked permission takes effect after the first at the latest."""
CACHE_SIZE = 64
"""Accepted tokens in the cache; refused ones have as many entries of their own."""
CONCURRENT_REVIEWS, MAX_WAITING = 2, 16
"""Concurrent reviews, and tokens that may wait for one; further tokens get 429."""
REVIEW_TIMEOUT = 5.0


class Refusal(NamedTuple):
    status: int
    text: str


Guard = Callable[[str | None], Awaitable[Refusal | None]]
"""Takes the Authorization header of a request; returns None where access is granted."""

NO_TOKEN = Refusal(401, "send a bearer token of the cluster: Authorization: Bearer TOKEN")
UNKNOWN_TOKEN = Refusal(401, "the cluster does not know this token")
BUSY = Refusal(429, "too many unknown tokens at a time; try again")


async def unguarded(_: str | None) -> None:
    """Grants every request."""


class Access:
    """A guard for one path."""

    def __init__(
        self, transport: Transport, path: str = "/metrics", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._transport, self._path, self._clock = transport, path, clock
        # Two caches, so that invalid tokens evict no valid one.
        self._allowed: OrderedDict[bytes, float] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, Refusal]] = OrderedDict()
        self._asking = asyncio.Semaphore(CONCURRENT_REVIEWS)
        self._waiting = 0
        self._failure = ""

    async def __call__(self, header: str | None) -> Refusal | None:
        kind, _, token = (header or "").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            return NO_TOKEN
        token_hash = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        if self._is_known(token_hash):
            return self._answer(token_hash)
        if self._waiting >= MAX_WAITING and token_hash not in self._allowed:
            return BUSY
        self._waiting += 1
        try:
            async with self._asking:
                # Another request may have received the result meanwhile.
                return (
                    self._answer(token_hash)
                    if self._is_known(token_hash)
                    else await self._ask(token_hash, token.strip())
                )
        finally:
            self._waiting -= 1

    def _is_known(self, token_hash: bytes) -> bool:
        until = self._allowed.get(token_hash) or self._refused.get(token_hash, (0.0, None))[0]
        return self._clock() < until

    def _answer(self, token_hash: bytes) -> Refusal | None:
        return None if token_hash in self._allowed else self._refused[token_hash][1]

    async def _ask(self, token_hash: bytes, token: str) -> Refusal | None:
        try:
            answer = await self._review(token)
        except KubeError as error:
            if str(error) != self._failure:
                logger.warning("cannot find out who may read %s: %s", self._path, error)
            self._failure = str(error)
            return Refusal(503, "the API server cannot be asked whose token this is; see the operator's log")
        self._failure = ""
        self._allowed.pop(token_hash, None)
        self._refused.pop(token_hash, None)
        if answer is None:
            self._allowed[token_hash] = self._clock() + ALLOWED_SECONDS
        else:
            self._refused[token_hash] = (self._clock() + REFUSED_SECONDS, answer)
        for kept in (self._allowed, self._refused):
            while len(kept) > CACHE_SIZE:
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
        made = await self._transport.request("create", resource, resource.path(None), body=body, timeout=REVIEW_TIMEOUT)
        return made.get("status") or {}
