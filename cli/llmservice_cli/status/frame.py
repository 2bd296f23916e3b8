"""All that one screen of `llmservice status NAME` is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmservice_cli.api import Api

from .events import Event, events_of
from .snapshot import Phase, Pod, Snapshot, counts, phase_of, snapshot


@dataclass(frozen=True, slots=True)
class Frame:
    """What was read of a service; `events` is the reason where they could not be."""

    seen: Snapshot
    events: tuple[Event, ...] | str

    def phase(self, pod: Pod) -> Phase:
        """Where one of its pods is."""
        return phase_of(pod.facts, self.seen.service.get("status") or {})

    @property
    def phases(self) -> Mapping[Phase, int]:
        """How many pods are in each phase; empty where they could not be read."""
        return {} if isinstance(self.seen.pods, str) else counts(map(self.phase, self.seen.pods))


async def frame(kube: Api, namespace: str, name: str, *, is_live: bool = True) -> Frame:
    """All of it; not `is_live`: without what pods say themselves. CliError where there is no such service."""
    seen = await snapshot(kube, namespace, name, is_live=is_live)
    pods = () if isinstance(seen.pods, str) else seen.pods
    worst_first = sorted(pods, key=lambda pod: pod.facts.ready)
    return Frame(seen, await events_of(kube, namespace, name, [pod.facts.name for pod in worst_first]))
