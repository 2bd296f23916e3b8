"""Bars of characters: one for each phase that pods are in. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from llmservice_cli.terminal import Row

from .phases import Phase

LONGEST = 40
"""Characters of the longest bar; up to as many pods have a character each."""
BLOCK, PLAIN = "█", "#"
STYLES: Mapping[Phase, str] = {
    Phase.PENDING: "dim",
    Phase.FETCHING: "cyan",
    Phase.LOADING: "cyan",
    Phase.STARTING: "cyan",
    Phase.READY: "green",
    Phase.DRAINING: "yellow",
    Phase.FAILING: "red",
}


def bars(phases: Mapping[Phase, int], *, is_styled: bool) -> Iterator[Row]:
    """A row each: the phase, its bar, its number of pods."""
    most = max(phases.values(), default=0)
    widest = max(map(len, Phase))
    for phase, count in phases.items():
        length = count if most <= LONGEST else max(1, round(LONGEST * count / most))
        bar = (BLOCK if is_styled else PLAIN) * length
        yield (f"{phase:<{widest}}  ", ""), (bar, STYLES[phase]), (f" {count}", "")
