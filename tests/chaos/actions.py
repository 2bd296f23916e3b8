"""What may be done to the services, the operator and the control plane, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tests.chaos.faults import Kind, Weather
from tests.support.services import merge, one_of_several, stand_in

JSON = dict[str, Any]
Engine = Literal["stand-in", "vllm"]


@dataclass(frozen=True)
class Desired:
    """The spec of a service, as far as a run changes it."""

    replicas: int = 1
    max_num_seqs: int = 8
    drain_seconds: int = 10
    fails: str = ""  # a start failure of the stand-in, by its name there
    unknown_flag: bool = False  # the operator refuses it
    paused: bool = False
    engine: Engine = "stand-in"

    def manifest(self, name: str) -> JSON:
        spec: dict[str, Any] = {
            "scaling": {"replicas": self.replicas},
            "batching": {"maxNumSeqs": self.max_num_seqs},
            "drain": {"timeoutSeconds": self.drain_seconds},
        }
        behaviour: dict[str, Any] = {"start_seconds": 1, "tokens_per_second": 40}
        if self.fails:
            behaviour["fails"] = self.fails
        made = stand_in(name, behaviour, **spec) if self.engine == "stand-in" else one_of_several(name, **spec)
        extra = {"runtime": {"extraArgs": ["--no-such-flag"]}} if self.unknown_flag else {}
        return merge(made, {"spec": {**({"paused": True} if self.paused else {}), **extra}})


@dataclass(frozen=True)
class Apply:
    """Create the service, or change its spec."""

    name: str
    desired: Desired
    why: str


@dataclass(frozen=True)
class RefusedEdit:
    """One that the API server itself must refuse, and that so changes nothing."""

    name: str


@dataclass(frozen=True)
class Delete:
    name: str
    cascade: Literal["Background", "Foreground", "Orphan"]


@dataclass(frozen=True)
class ForeignEdit:
    """Somebody else changes a child."""

    name: str
    plural: str
    patch: Mapping[str, Any]


@dataclass(frozen=True)
class ForeignDelete:
    """Somebody else deletes a child."""

    name: str
    plural: str


@dataclass(frozen=True)
class EndPod:
    """`pick` chooses among those there are. An eviction heeds the disruption budget, a killed pod has no time."""

    name: str
    pick: int
    how: Literal["evict", "delete", "kill"]


@dataclass(frozen=True)
class KillOperator:
    """SIGKILL to one of its processes."""

    pick: int


@dataclass(frozen=True)
class DeleteOperatorPod:
    pick: int


@dataclass(frozen=True)
class Restart:
    """A component of the control plane is away for some seconds; killed, it had no time to end well."""

    component: Literal["kube-apiserver", "etcd"]
    how: Literal["stop", "kill"]
    seconds: float


@dataclass(frozen=True)
class SkewLease:
    """The leader's clock was wrong by so many seconds when it wrote the Lease."""

    seconds: int


@dataclass(frozen=True)
class Storm:
    """Faults on the operator's way to the API server, until the next one; none: calm."""

    shares: tuple[tuple[Kind, float], ...]

    @property
    def weather(self) -> Weather:
        return Weather(dict(self.shares))


Action = (
    Apply
    | RefusedEdit
    | Delete
    | ForeignEdit
    | ForeignDelete
    | EndPod
    | KillOperator
    | DeleteOperatorPod
    | Restart
    | SkewLease
    | Storm
)


def kind_of(action: Action) -> str:
    """What blows are counted by: some do the same thing in ways that differ."""
    match action:
        case Delete(_, cascade):
            return f"{cascade} deletion"
        case ForeignEdit(_, plural):
            return f"edit of {plural}"
        case ForeignDelete(_, plural):
            return f"deletion of {plural}"
        case EndPod(_, _, how):
            return f"{how} of a pod"
        case KillOperator():
            return "kill of the operator"
        case Restart(component, how):
            return f"{how} of {component}"
        case _:
            return type(action).__name__


KILLS = frozenset({"kill of a pod", "kill of the operator", "kill of kube-apiserver", "kill of etcd"})


@dataclass(frozen=True)
class Step:
    """`at`: seconds after the beginning, at the earliest."""

    at: float
    action: Action
