"""Responses of the state port: a pure function of path and state."""

from __future__ import annotations

from collections.abc import Sequence

from llmservice_runtime.contract import LIVE_PATH, METRICS_PATH, READY_PATH, STARTUP_PATH, STATE_PATH, State
from llmservice_runtime.supervisor import metrics
from llmservice_runtime.supervisor.state_server import Reply


def respond(path: str, state: State, slots: Sequence[int], keys: int | None = None) -> Reply:
    """The response to GET `path`: probes (200 or 503), /state (JSON), /metrics (Prometheus); 404 otherwise."""
    if path == STATE_PATH:
        return Reply(200, state.to_json(), "application/json")
    if path == METRICS_PATH:
        return Reply(200, metrics.exposition(metrics.Snapshot(state, slots, keys)), metrics.CONTENT_TYPE)
    conditions = {STARTUP_PATH: state.started, READY_PATH: state.ready, LIVE_PATH: True}
    if path not in conditions:
        return Reply(404, "not found\n")
    word = f"{state.phase} {state.progress}".strip()
    return Reply(200 if conditions[path] else 503, word + "\n")
