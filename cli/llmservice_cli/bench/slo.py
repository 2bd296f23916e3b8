"""A service level objective: how long a good request takes at most. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from llmservice_cli.errors import BadInput

_LIMIT = re.compile(r"(\w+):(\d{1,9}(?:\.\d{1,9})?)(ms|s|)")
_REMEDY = "Write ttft, tpot or e2el, a colon and a time such as 500ms or 5s; a number alone is milliseconds."


class Time(StrEnum):
    """What can be limited, in `vllm bench serve`'s words."""

    TTFT = "ttft"  # time to first token
    TPOT = "tpot"  # time per output token after the first
    E2EL = "e2el"  # end-to-end latency


@dataclass(frozen=True)
class Slo:
    """Limits in seconds, and the share of all requests that has to be within them."""

    limits: Mapping[Time, float]
    share: float

    def is_met(self, ttft: float | None, tpot: float | None, e2el: float | None) -> bool:
        """By one request. One of a single token has no time per token, which then is no obstacle."""
        measured = {Time.TTFT: ttft, Time.TPOT: tpot or 0.0, Time.E2EL: e2el}
        return all((value := measured[name]) is not None and value <= limit for name, limit in self.limits.items())

    def __str__(self) -> str:
        return ", ".join(f"{name} {limit * 1000:g} ms" for name, limit in self.limits.items())


def slo_of(texts: Iterable[str], share: float) -> Slo | None:
    """As `--slo` names it; None of nothing. BadInput names every part that cannot be used."""
    limits: dict[Time, float] = {}
    for text in texts:
        found = _LIMIT.fullmatch(text)
        if found is None or found[1] not in [*Time]:
            raise BadInput.of("--slo", f"{text!r} is no objective.", _REMEDY)
        limits[Time(found[1])] = float(found[2]) / (1 if found[3] == "s" else 1000)
    return Slo(limits, share) if limits else None
