"""Watches of a namespace while a test runs: when each object was seen how, by this machine's clock."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.cluster import COLLECTIONS, JSON, Cluster, eventually
from tests.support.patience import PATIENCE, at_most


@dataclass(frozen=True)
class Seen:
    """One state of one object."""

    at: float
    """Seconds of the epoch."""
    obj: JSON

    @property
    def name(self) -> str:
        name: str = self.obj["metadata"]["name"]
        return name


@dataclass
class Watcher:
    """Everything that one watch brought."""

    seen: list[Seen] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def add(self, seen: Seen) -> None:
        with self._changed:
            self.seen.append(seen)
            self._changed.notify_all()

    def first(self, is_wanted: Callable[[JSON], Any], timeout: float = 0.0) -> Seen | None:
        """The first state that is wanted, waiting for it as `eventually` does; 0: what came until now."""
        return self._first(is_wanted, at_most(timeout) if timeout else 0.0)

    def unwanted(self, is_unwanted: Callable[[JSON], Any], seconds: float) -> Seen | None:
        """A state that must not come, if one comes in so many seconds."""
        return self._first(is_unwanted, seconds)

    def _first(self, is_wanted: Callable[[JSON], Any], seconds: float) -> Seen | None:
        deadline = time.monotonic() + seconds
        looked_at = 0
        with self._changed:
            while True:
                for seen in self.seen[looked_at:]:
                    if is_wanted(seen.obj):
                        return seen
                looked_at = len(self.seen)
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)


@contextmanager
def watching(cluster: Cluster, plural: str, namespace: str) -> Iterator[Watcher]:
    """From now until the end of the block. A watch that breaks goes on where it was."""
    watcher, stopping = Watcher(), threading.Event()
    path = f"{COLLECTIONS[plural]}/namespaces/{namespace}/{plural}"
    version = cluster.api.get(path).raise_for_status().json()["metadata"]["resourceVersion"]
    thread = threading.Thread(target=_follow, args=(cluster.api, path, version, watcher, stopping), daemon=True)
    thread.start()
    try:
        yield watcher
    finally:
        stopping.set()
        thread.join(timeout=PATIENCE)


def _follow(api: httpx.Client, path: str, version: str, watcher: Watcher, stopping: threading.Event) -> None:
    while not stopping.is_set():
        params = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "5"}
        with api.stream("GET", path, params=params, timeout=PATIENCE) as response:
            for line in response.iter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise AssertionError(f"the watch of {path} ended: {event['object']}")
                version = event["object"]["metadata"]["resourceVersion"]
                watcher.add(Seen(time.time(), event["object"]))


def settled(cluster: Cluster, namespace: str) -> None:
    """Waits until no LLMService of the namespace changes any more."""

    def versions() -> list[str]:
        return [item["metadata"]["resourceVersion"] for item in cluster.list("llmservices", namespace)]

    seen = versions()
    quiet_since = time.monotonic()

    def quiet() -> bool:
        nonlocal seen, quiet_since
        if (now := versions()) != seen:
            seen, quiet_since = now, time.monotonic()
        return time.monotonic() - quiet_since > 3

    eventually("a settled namespace", quiet, 60)
