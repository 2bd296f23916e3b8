"""How far off the planner is: for each start-up with constants that were fitted without its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmservice_planner.memory import plan
from llmservice_planner.plan import Fit, Plan

from benchmarks.calibration.earlier import ALL, EarlierConstants, constants_of, printed
from benchmarks.calibration.fit import Errors, fit, points
from benchmarks.calibration.records import FAILED, Startup

COVERED = 0.9
"""Share of the start-ups that the error band is to hold."""


@dataclass(frozen=True)
class Judged:
    """One start-up beside the plan that was made without its model."""

    startup: Startup
    plan: Plan

    @property
    def tokens_error(self) -> float | None:
        """Planned by measured tokens, less 1; by the GiB that they lie in where no tokens were printed."""
        tokens = self.startup.facts.get("kv_cache_tokens")
        measured: float | None = float(tokens) if tokens else self.startup.kv_gib
        planned: float | None = self.plan.kv_cache_tokens if tokens else self.plan.kv_cache_gib
        if not measured or measured < 0 or not planned:
            return None
        return planned / measured - 1

    @property
    def kv_error_gib(self) -> float | None:
        """Planned less measured KV cache on one GPU."""
        if self.startup.kv_gib is None or self.plan.kv_cache_gib is None:
            return None
        return self.plan.kv_cache_gib - self.startup.kv_gib

    @property
    def overhead_gib(self) -> float:
        """As planned, of what counts before the KV cache."""
        known = (self.plan.activation_gib, self.plan.non_torch_gib)
        return sum(part for part in known if part is not None)

    @property
    def verdict_is_right(self) -> bool | None:
        """None where the start-up says nothing of its fit. Tight is right where the measured margin is in the band."""
        outcome = self.startup.outcome
        if outcome is None or self.plan.verdict is Fit.UNKNOWN:
            return None
        if self.plan.verdict is Fit.TIGHT:
            error, margin, band = self.kv_error_gib, self.plan.margin_gib, self.plan.error_band_gib
            if error is None or margin is None or band is None:
                return True
            return abs(margin - error) <= band
        return (self.plan.verdict is Fit.FITS) == (outcome not in FAILED)


def leave_one_model_out(records: Sequence[Startup]) -> list[Judged]:
    """Each start-up, planned with constants that its model had no part in."""
    known = points(records)
    models = {record.model for record in records}
    found: Errors = {}
    constants = {model: fit([one for one in known if one.model != model], found=found) for model in models}
    return [judged(record, constants[record.model]) for record in records if record.request is not None]


def judged(record: Startup, constants: EarlierConstants = ALL) -> Judged:
    """One start-up with these constants."""
    assert record.request is not None
    made = plan(record.request, constants_of(constants, record.version, record.request))
    return Judged(record, printed(made, record.version))


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so many are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]
