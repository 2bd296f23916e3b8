"""Whether a service is in use, which keeps its last replica and starts its first one.

| what was found | replicas 0 | 1 or more |
|-|-|-|
| minReplicas of now is 1 or more | active | active |
| requests held or in flight, or a counter of a pod that rose | active | active |
| a pod that starts, or that was not there before, replicas that are not ready | - | active |
| a ready pod or an activator that did not answer, a pod that does not count its requests | - | active |
| the last of the first three less than idleSeconds ago | - | active |
| none of these | idle | idle |

With replicas 0 what is not known wakes nobody: a request that comes is held, and starts a replica itself.

KEDA asks any of the activators: one may first be asked again after a replica that others started is ready, and its
idleSeconds are long over. So a pod that is new to it is a start, though it saw none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kubeloop.resources import Key

from llmservice_activator.demand import Load
from llmservice_activator.services import Service


@dataclass(frozen=True, slots=True)
class Activity:
    """Whether a service is in use, and why."""

    is_active: bool
    why: str


ALWAYS = Activity(True, "minReplicas is 1 or more")


@dataclass(slots=True)
class _Tracked:
    """State of one service; times by the monotonic clock."""

    uid: str
    last: float
    """When the service was last in use, else when this process first saw it."""
    started: dict[str, int] = field(default_factory=dict)
    """By pod: its counter of started requests at the last read."""
    replicas: int = 0
    """Desired replicas at the last read."""


class ActivityTracker:
    def __init__(self) -> None:
        self._known: dict[Key, _Tracked] = {}

    def update(
        self, service: Service, load: Load, started: Mapping[str, int], min_replicas: int, now: float
    ) -> Activity:
        """Takes the counters of started requests by pod name, and the minReplicas in force."""
        known = self._known.get(service.key)
        if known is None or known.uid != service.uid:
            # The time of the last request is unknown: idleSeconds count from now.
            known = self._known[service.key] = _Tracked(service.uid, now, dict(started), load.replicas)
        # A counter that fell was reset by a restart of its container.
        rose = any(count != known.started.get(pod, 0) for pod, count in started.items())
        is_new = load.replicas > known.replicas or not started.keys() <= known.started.keys()
        known.started = {**known.started, **started} if load.unread else dict(started)
        known.replicas = load.replicas
        use = _reason_in_use(load, rose=rose, is_new=is_new)
        if use:
            known.last = now
        if min_replicas >= 1:
            return ALWAYS
        if use:
            return Activity(True, use)
        if load.replicas == 0:
            return Activity(False, "no request is held")
        idle = service.autoscaling.scale_down.idle_seconds
        if unknown := _reason_unknown(load):
            return Activity(True, unknown)
        if now - known.last < idle:
            return Activity(True, f"a request came, or a replica started, less than {idle} s ago")
        return Activity(False, f"no request for {idle} s")

    def forget(self, key: Key) -> None:
        self._known.pop(key, None)


def _reason_in_use(load: Load, *, rose: bool, is_new: bool) -> str:
    """Why the service is in use; empty if it is not.

    A replica that fails or cannot be scheduled is not in use: it is removed `idleSeconds` after the last request, or
    after it was requested.
    """
    if load.held:
        return f"requests held: {load.held}"
    if load.in_flight or rose:
        return "requests came"
    if load.replicas and (load.starting or is_new):
        return "a replica is starting"
    return ""


def _reason_unknown(load: Load) -> str:
    """Why requests may be unnoticed; empty if none can be."""
    if load.unread:
        return f"ready without an answer: {load.unread}"
    if load.uncounted_pods:
        return f"pods of an earlier version, which do not count their requests: {load.uncounted_pods}"
    return (
        f"activators that do not say what they hold: {load.unanswered_activators}" if load.unanswered_activators else ""
    )
