"""Which watches are synced, for each namespace and each part (kopf's watch, and one informer per child kind).

A namespace is warm once all its parts are synced; from then on its services are reconciled. A namespace that is gone or
lacks its Role delays no other. The state follows from the API server's answers to the watches; permissions are not
queried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kubeloop.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    KubeError,
    NotFound,
    ServerError,
    TooManyRequests,
    lacks_right,
)
from kubeloop.resources import Resource

logger = logging.getLogger(__name__)

_PASSING = (Conflict, Gone, ServerError, TooManyRequests)
_NAMED = 20


def watch_of(parent: Resource) -> str:
    """Name of the part for kopf's watch; the others are named after their resources."""
    return f"watch of {parent.kind}s"


def problem_of(error: KubeError) -> str:
    """One line that names the missing permission, or describes the error."""
    if lacks_right(error):
        return f"missing right: {error.right}"
    return " ".join(str(error).split())


def is_lasting(error: KubeError) -> bool:
    """Whether the error needs somebody's action, unlike an overloaded or unavailable API server."""
    return isinstance(error, ApiError) and not isinstance(error, _PASSING)


@dataclass(slots=True)
class _Part:
    is_synced: bool = False
    problem: str = ""
    cause: type | None = None
    is_forbidden: bool = False
    is_lasting: bool = False


class Unwatched(NamedTuple):
    """Numbers of parts in one namespace."""

    forbidden: int
    """Without permission to watch."""
    broken: int
    """With any problem, including a missing permission."""


class SyncState:
    """State of the watches, for the workers and /readyz.

    `namespaces`: those that are watched, or (None,) for all together. `parent`: the kind whose keys are queued.
    `on_warm` is called once for each namespace, `on_hidden` whenever its set of hidden kinds changes.
    """

    def __init__(
        self,
        namespaces: Iterable[str | None],
        parent: Resource,
        children: Iterable[Resource] = (),
        *,
        on_warm: Callable[[str | None], None] = lambda _: None,
        on_hidden: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self._parent = parent
        names = (watch_of(parent), *(resource.full_name for resource in (parent, *children)))
        self._parts = {namespace: {name: _Part() for name in names} for namespace in namespaces}
        self._hidden: dict[str | None, frozenset[str]] = dict.fromkeys(self._parts, frozenset())
        self._warm: set[str | None] = set()
        self._on_warm, self._on_hidden = on_warm, on_hidden
        self.listable = asyncio.Event()
        """Set once the parents of one namespace may be listed."""
        self.settled = asyncio.Event()
        """Set once one namespace is warm, and each other one is warm or blocked."""

    def synced(self, namespace: str | None, part: str) -> None:
        """A part was listed and its watch is running."""
        state = self._parts[namespace][part]
        if state.problem:
            logger.info("%s%s is watched again", _where(namespace), part)
        self._parts[namespace][part] = _Part(is_synced=True)
        if part == self._parent.full_name:
            self.listable.set()
        self._update_warm(namespace)

    def failed(self, namespace: str | None, part: str, error: KubeError | str) -> None:
        """A part cannot be watched now. Logged when the kind of problem changes, not on each attempt."""
        known = self._parts[namespace][part]
        problem, lasts = (error, True) if isinstance(error, str) else (problem_of(error), is_lasting(error))
        if isinstance(error, NotFound):
            problem = f"the CRD {self._parent.full_name} is not installed; waiting for it"
        if not known.problem or known.cause is not type(error):
            logger.warning("%scannot watch %s: %s", _where(namespace), part, problem if lasts else error)
        self._parts[namespace][part] = _Part(
            is_synced=known.is_synced,
            problem=problem,
            cause=type(error),
            is_forbidden=isinstance(error, Forbidden),
            is_lasting=lasts,
        )
        self._update_warm(namespace)

    def hide(self, namespace: str | None, resource: Resource) -> None:
        """An optional kind may not be listed; `show` reverses it."""
        self._set_hidden(namespace, self._hidden[namespace] | {resource.kind})
        self._parts[namespace][resource.full_name] = _Part(is_synced=True)
        self._update_warm(namespace)

    def show(self, namespace: str | None, resource: Resource) -> None:
        """A hidden kind may be listed again, and is synced."""
        self.synced(namespace, resource.full_name)
        self._set_hidden(namespace, self._hidden[namespace] - {resource.kind})

    def is_warm(self, namespace: str) -> bool:
        """Whether services of this namespace may be reconciled."""
        return self._scope(namespace) in self._warm

    def hidden(self, namespace: str) -> frozenset[str]:
        """Optional kinds that cannot be listed in this namespace."""
        return self._hidden.get(self._scope(namespace), frozenset())

    def working(self) -> Collection[str | None]:
        """Warm namespaces without a lasting problem."""
        return [namespace for namespace in self._warm if not any(p.is_lasting for p in self._of(namespace))]

    def unwatched(self) -> Iterator[tuple[str | None, Unwatched]]:
        """For each namespace the numbers of parts that cannot be watched now."""
        for namespace, parts in self._parts.items():
            forbidden = sum(part.is_forbidden for part in parts.values())
            yield namespace, Unwatched(forbidden, broken=sum(bool(part.problem) for part in parts.values()))

    def problems(self) -> list[str]:
        """One line for each namespace and problem, or for what is not synced yet."""
        lines = [line for namespace in self._parts for line in self._problems_of(namespace)]
        more = len(lines) - _NAMED
        return lines if more <= 0 else [*lines[:_NAMED], f"and {more} more"]

    def _problems_of(self, namespace: str | None) -> Iterator[str]:
        where, problems = _where(namespace), dict.fromkeys(p.problem for p in self._of(namespace) if p.problem)
        yield from (where + problem for problem in problems)
        if not problems and namespace not in self._warm:
            awaited = (name for name, part in self._parts[namespace].items() if not part.is_synced)
            yield f"{where}not synced yet: {', '.join(awaited)}"

    def _of(self, namespace: str | None) -> Collection[_Part]:
        return self._parts[namespace].values()

    def _scope(self, namespace: str) -> str | None:
        return namespace if namespace in self._parts else None

    def _set_hidden(self, namespace: str | None, kinds: frozenset[str]) -> None:
        if kinds != self._hidden[namespace]:
            self._hidden[namespace] = kinds
            self._on_hidden(namespace)

    def _update_warm(self, namespace: str | None) -> None:
        if namespace not in self._warm and all(part.is_synced for part in self._of(namespace)):
            self._warm.add(namespace)
            self._on_warm(namespace)
        if self._warm and all(ns in self._warm or any(p.problem for p in self._of(ns)) for ns in self._parts):
            self.settled.set()


def _where(namespace: str | None) -> str:
    return "" if namespace is None else f"namespace {namespace}: "
