"""What was planned beside what vLLM measured. Pure: figures of status.plan and status.measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from llmservice_cli.api import Json

NO_VALUE = "-"


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure; None where there is none."""

    name: str
    measured_as: str
    """Its name in status.measured."""
    planned: float | None
    measured: float | None

    @property
    def difference(self) -> str:
        """Of what was planned, in percent."""
        if self.planned is None or self.measured is None or not self.planned:
            return NO_VALUE
        return f"{100 * (self.measured / self.planned - 1):+.1f} %"


_Plan = Callable[[Json], Any]
_ROWS: tuple[tuple[str, str, _Plan], ...] = (
    ("weights, GiB of a GPU", "modelMemoryGiB", lambda plan: (plan.get("perGPU") or {}).get("weightsGiB")),
    ("KV cache, GiB of a GPU", "kvCacheMemoryGiB", lambda plan: (plan.get("perGPU") or {}).get("kvCacheGiB")),
    ("KV cache tokens", "kvCacheTokens", lambda plan: plan.get("kvCacheTokens")),
    ("max concurrency", "maxConcurrency", lambda plan: plan.get("maxConcurrency")),
    ("longest request, tokens", "maxModelLen", lambda plan: plan.get("requestedMaxModelLen")),
)


def compared(status: Json) -> Iterator[Compared]:
    """Nothing where nothing was planned."""
    plan, measured = status.get("plan") or {}, status.get("measured") or {}
    if not plan.get("kvCacheTokens"):
        return
    for name, measured_as, planned in _ROWS:
        row = Compared(name, measured_as, _number(planned(plan)), _number(measured.get(measured_as)))
        if row.planned is not None or row.measured is not None:
            yield row


def shown(value: float | None) -> str:
    """With its digits in groups; a fraction only where it says something."""
    if value is None:
        return NO_VALUE
    return f"{value:,.0f}" if value == int(value) and value >= 100 else f"{value:,.2f}"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
