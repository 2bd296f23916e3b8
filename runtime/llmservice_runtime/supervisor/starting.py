"""A start under way: its budget, whether it moves, and what is said of one that does not."""

from __future__ import annotations

from dataclasses import replace

from llmservice_runtime.contract import (
    HANG_RESTART_SECONDS_ENV,
    HANG_UNREADY_SECONDS_ENV,
    STALL_SECONDS_ENV,
    START_CEILING_SECONDS,
    START_SECONDS_ENV,
    Failure,
    Phase,
    State,
)
from llmservice_runtime.failures import own_failures
from llmservice_runtime.health.start_watch import News, StartWatch, Verdict
from llmservice_runtime.options import ServeOptions, seconds_of
from llmservice_runtime.supervisor.dependencies import Surroundings

# A first request is one step of an engine that is ready; a compilation may still come with it.
SMOKE_SECONDS = 300.0
# Before the startup probe's ceiling, so that there is time to say why.
_MARGIN_SECONDS = 60.0


def with_environment(options: ServeOptions, around: Surroundings) -> tuple[ServeOptions, Surroundings]:
    """With what the user says in the pod's environment. ValueError where that is no number."""
    variables, patience = around.environment, around.patience
    told = replace(
        options,
        start_seconds=seconds_of(variables, START_SECONDS_ENV, options.start_seconds),
        hang_unready_seconds=seconds_of(variables, HANG_UNREADY_SECONDS_ENV, options.hang_unready_seconds),
        hang_restart_seconds=seconds_of(variables, HANG_RESTART_SECONDS_ENV, options.hang_restart_seconds),
    )
    stall = seconds_of(variables, STALL_SECONDS_ENV, patience.stall_seconds)
    return told, replace(around, patience=replace(patience, stall_seconds=stall))


class Start:
    """One server's, from the first process of vLLM to the first answer."""

    def __init__(self, options: ServeOptions, around: Surroundings) -> None:
        self._options, self._around = options, around
        self._container_began = around.clock()
        self._began = self._container_began
        self._news = News()
        self._watch = StartWatch.begin(self._began)

    def begin(self) -> None:
        """The budget begins now: the model is there."""
        self._began = self._around.clock()
        self._watch = StartWatch.begin(self._began)

    def heard(self, text: str) -> None:
        """A line of vLLM's log."""
        if self._news.is_new(text):
            self._watch = self._watch.heard(self._around.clock())

    def moved(self) -> None:
        """A step of the start is done."""
        self._watch = self._watch.heard(self._around.clock())

    def look(self, group: int, left: float) -> Verdict:
        """What is to be thought of a start, with so many seconds of its budget left."""
        now, patience = self._around.clock(), self._around.patience
        self._watch = self._watch.looked(self._around.usage(group), now, patience)
        ceiling = START_CEILING_SECONDS - _MARGIN_SECONDS - (now - self._container_began)
        return self._watch.verdict(left=left, ceiling=ceiling, now=now, patience=patience)

    def left(self, state: State, phase_seconds: float) -> float:
        """Seconds of the budget; of the first request's own while that is awaited."""
        left = self._options.start_seconds - (self._around.clock() - self._began)
        return min(left, SMOKE_SECONDS - phase_seconds) if state.phase is Phase.SMOKE else left

    def failure(self, verdict: Verdict, state: State) -> Failure:
        """Why it is given up."""
        now = self._around.clock()
        if verdict is Verdict.TOO_LONG:
            return own_failures.start_too_long(now - self._container_began, state.progress)
        still = now - self._watch.moved_at
        if state.phase is Phase.SMOKE:
            return own_failures.smoke_unanswered(still)
        return own_failures.start_stopped(self._options.start_seconds, state.progress, still)

    def told(self, state: State) -> State:
        """With what a start may take; without, once it is over."""
        if state.started:
            return replace(state, slow=False, start_budget_seconds=None, usual_start_seconds=None)
        budget, usual = self._options.start_seconds, self._options.usual_seconds or None
        return replace(state, start_budget_seconds=budget, usual_start_seconds=usual)

    @property
    def seconds(self) -> float:
        """Since the container began."""
        return self._around.clock() - self._container_began
