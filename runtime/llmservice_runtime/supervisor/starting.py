"""The start of one server: its budget, its progress, and the failure of a start that exceeds its limits."""

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
from llmservice_runtime.failures import failures
from llmservice_runtime.health.start_watch import LineFilter, StartWatch, Verdict
from llmservice_runtime.options import ServeOptions, seconds_of
from llmservice_runtime.supervisor.dependencies import Dependencies

# The first request is one engine step, and may trigger a compilation.
SMOKE_SECONDS = 300.0
# Before the startup probe's ceiling: time to write the termination message.
_MARGIN_SECONDS = 60.0


def with_environment(options: ServeOptions, dependencies: Dependencies) -> tuple[ServeOptions, Dependencies]:
    """Both values with the overrides of the pod's environment (seconds). ValueError where one is not a number."""
    variables, limits = dependencies.environment, dependencies.stall_limits
    options = replace(
        options,
        start_seconds=seconds_of(variables, START_SECONDS_ENV, options.start_seconds),
        hang_unready_seconds=seconds_of(variables, HANG_UNREADY_SECONDS_ENV, options.hang_unready_seconds),
        hang_restart_seconds=seconds_of(variables, HANG_RESTART_SECONDS_ENV, options.hang_restart_seconds),
    )
    stall = seconds_of(variables, STALL_SECONDS_ENV, limits.stall_seconds)
    return options, replace(dependencies, stall_limits=replace(limits, stall_seconds=stall))


class Start:
    """Tracks the start from the first vLLM process to the first response."""

    def __init__(self, options: ServeOptions, dependencies: Dependencies, container_began: float) -> None:
        self._options, self._dependencies = options, dependencies
        self._container_began = self._began = container_began
        self.is_done = False
        """Whether the server has answered a request."""
        self._lines = LineFilter()
        self._watch = StartWatch.begin(self._began)

    def begin(self) -> None:
        """Start the budget: the model is available."""
        self._began = self._dependencies.clock()
        self._watch = StartWatch.begin(self._began)

    def on_line(self, text: str) -> None:
        """Record a line of vLLM's log (without its prefix); repeated lines do not count as progress."""
        if self._lines.is_new(text):
            self.on_step()

    def on_step(self) -> None:
        """Record that a step of the start is done."""
        self._watch = self._watch.after_line(self._dependencies.clock())

    def evaluate(self, group: int, remaining: float) -> Verdict:
        """The verdict from the usage of process group `group`; `remaining` is in seconds of the budget."""
        now, limits = self._dependencies.clock(), self._dependencies.stall_limits
        self._watch = self._watch.after_usage(self._dependencies.usage(group), now, limits)
        ceiling = START_CEILING_SECONDS - _MARGIN_SECONDS - (now - self._container_began)
        return self._watch.verdict(remaining=remaining, ceiling=ceiling, now=now, limits=limits)

    def remaining(self, state: State, phase_seconds: float) -> float:
        """Seconds left of the budget; in phase Smoke of the first request's own limit, if that is shorter."""
        remaining = self._options.start_seconds - (self._dependencies.clock() - self._began)
        return min(remaining, SMOKE_SECONDS - phase_seconds) if state.phase is Phase.SMOKE else remaining

    def failure(self, verdict: Verdict, state: State) -> Failure:
        """The failure for verdict STOPPED or TOO_LONG."""
        now = self._dependencies.clock()
        if verdict is Verdict.TOO_LONG:
            return failures.start_too_long(now - self._container_began, state.progress)
        idle = now - self._watch.active_at
        if state.phase is Phase.SMOKE:
            return failures.smoke_failed(f"no response, and no progress for {idle:.0f} s")
        return failures.start_stopped(self._options.start_seconds, state.progress, idle)

    def with_budget(self, state: State) -> State:
        """`state` with the budget and the usual start time; without them once the start is done."""
        if self.is_done:
            return replace(state, slow=False, start_budget_seconds=None, usual_start_seconds=None)
        budget, usual = self._options.start_seconds, self._options.usual_seconds or None
        return replace(state, start_budget_seconds=budget, usual_start_seconds=usual)

    @property
    def seconds(self) -> float:
        """Since the container began."""
        return self._dependencies.clock() - self._container_began
