"""Number of replicas that the ResourceQuotas of a namespace admit.

Anyone who may write a ResourceQuota chooses its content, so it is read only here, within bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any, Self

from llmservice_planner.quantity import amount
from llmservice_planner.room import PODS, Amounts, plus

MOST_KEYS = 200
"""Of one quota."""
LONGEST = 253
"""Characters of a name or key."""
_REQUESTS = "requests."
_PLAIN = ("cpu", "memory")
"""Resources whose requests a quota may also limit under their own name."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A ResourceQuota that applies to all pods of its namespace."""

    name: str
    hard: Amounts
    """By the quota's own keys: `pods`, `requests.cpu`, ..."""
    used: Amounts
    """By the same keys; absent if the API server has not counted it yet."""

    @classmethod
    def from_object(cls, obj: object) -> Self | None:
        """None for other objects, and with scopes, which may not apply to the service's pods."""
        metadata, spec, status = (_object(_object(obj).get(part)) for part in ("metadata", "spec", "status"))
        name = metadata.get("name")
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST or spec.get("scopes") or spec.get("scopeSelector"):
            return None
        return cls(name, _amounts(spec.get("hard")), _amounts(status.get("used")))


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of a namespace, with the service's pods at that time."""

    quotas: tuple[Quota, ...]
    pods: tuple[Amounts, ...]
    """Requests of each of the service's pods; empty if unknown."""

    def admitted(self, per_replica: Amounts) -> Admitted | None:
        """The lowest limit of any quota; None where none limits replicas. `per_replica`: of one pod."""
        own: Amounts = {}
        for asked in self.pods:
            own = plus(own, asked or per_replica)
        return least_admitted(self.quotas, per_replica, own)


@dataclass(frozen=True, slots=True)
class Admitted:
    """Replicas that a quota admits, and its key."""

    replicas: int
    quota: str
    key: str


def least_admitted(quotas: Iterable[Quota], per_replica: Amounts, own: Amounts) -> Admitted | None:
    """The lowest limit of any quota; None where none limits replicas.

    `per_replica` are the requests of one pod and `own` those of all of the service's pods, by resource; a pod counts as
    one of `pods`.
    """
    found = (each for quota in quotas for each in _admitted(quota, per_replica, own))
    return min(found, key=lambda each: (each.replicas, each.quota, each.key), default=None)


def _admitted(quota: Quota, per_replica: Amounts, own: Amounts) -> Iterator[Admitted]:
    for key, hard in quota.hard.items():
        resource = _resource(key)
        each = per_replica.get(resource, Decimal(0)) if resource is not None else Decimal(0)
        used = quota.used.get(key)
        if resource is None or each <= 0 or used is None:
            continue
        others = max(Decimal(0), used - own.get(resource, Decimal(0)))
        room = ((hard - others) / each).to_integral_value(ROUND_FLOOR)
        yield Admitted(max(0, int(room)), quota.name, key)


def _resource(key: str) -> str | None:
    """The resource of a pod that a quota's key limits; None if it is not one of its requests."""
    if key in (PODS, "count/pods"):
        return PODS
    if key in _PLAIN:
        return key
    return key.removeprefix(_REQUESTS) if key.startswith(_REQUESTS) else None


def _amounts(written: object) -> Amounts:
    found: dict[str, Decimal] = {}
    for key, value in list(_object(written).items())[:MOST_KEYS]:
        if isinstance(key, str) and len(key) <= LONGEST and isinstance(value, str | int | float):
            try:
                found[key] = amount(value)
            except ValueError:
                continue  # an invalid figure limits nothing
    return found


def _object(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}
