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
    """The result, with the reason in words."""

    is_active: bool
    why: str


ALWAYS = Activity(True, "minReplicas is 1 or more")


@dataclass(slots=True)
class _Known:
    """Of one service; times by the monotonic clock."""

    uid: str
    last: float
    """When it was last in use; when this process first looked, if it never was since."""
    begun: dict[str, int] = field(default_factory=dict)
    """By pod: the counter as it was read last."""
    replicas: int = 0
    """That were asked for then."""


class Activities:
    """What has to be kept between two looks at a service."""

    def __init__(self) -> None:
        self._known: dict[Key, _Known] = {}

    def look(self, service: Service, load: Load, begun: Mapping[str, int], fewest: int, now: float) -> Activity:
        """With `begun`, the counters of the pods that have one, by name, and `fewest`, the minReplicas of now."""
        known = self._known.get(service.key)
        if known is None or known.uid != service.uid:
            # When the last request was is not known: idleSeconds count from now.
            known = self._known[service.key] = _Known(service.uid, now, dict(begun), load.replicas)
        # A counter that fell is that of a container that was started again.
        rose = any(count != known.begun.get(pod, 0) for pod, count in begun.items())
        is_new = load.replicas > known.replicas or not begun.keys() <= known.begun.keys()
        known.begun = {**known.begun, **begun} if load.unread else dict(begun)
        known.replicas = load.replicas
        use = _use(load, rose=rose, is_new=is_new)
        if use:
            known.last = now
        if fewest >= 1:
            return ALWAYS
        if use:
            return Activity(True, use)
        if load.replicas == 0:
            return Activity(False, "no request is held")
        idle = service.autoscaling.scale_down.idle_seconds
        if unknown := _unknown(load):
            return Activity(True, unknown)
        if now - known.last < idle:
            return Activity(True, f"a request came, or a replica started, less than {idle} s ago")
        return Activity(False, f"no request for {idle} s")

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._known.pop(key, None)


def _use(load: Load, *, rose: bool, is_new: bool) -> str:
    """What of the service is in use; empty: nothing.

    A replica that fails, or finds no place, is none: it is given back `idleSeconds` after the last request, or after it
    was asked for.
    """
    if load.held:
        return f"requests held: {load.held}"
    if load.in_flight or rose:
        return "requests came"
    if load.replicas and (load.starting or is_new):
        return "a replica is starting"
    return ""


def _unknown(load: Load) -> str:
    """What may hide requests; empty: nothing."""
    if load.unread:
        return f"ready without an answer: {load.unread}"
    if load.uncounted:
        return f"pods of an earlier version, which do not count their requests: {load.uncounted}"
    return f"activators that do not say what they hold: {load.unheard}" if load.unheard else ""
