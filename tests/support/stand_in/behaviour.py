"""What a stand-in does differently from a good server, as the variable STAND_IN says it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

VARIABLE = "STAND_IN"

Fate = Literal["answer", "error", "die", "exit0", "hang", "sigill", "no-compiler", "memory"]


@dataclass(frozen=True)
class Behaviour:
    """The defaults are a good server that starts at once."""

    start_seconds: float = 0.1
    """From the process's start to the open port."""
    shards: int = 1
    """Weight files, whose progress is told while it starts."""
    stalls_at: int | None = None
    """A number of shards after which nothing more happens until SIGUSR1."""
    fails: str = ""
    """A failure of `failures.FAILURES`: its recorded log lines, then its exit code."""
    eats_mib: int = 0
    """Memory that the engine's process fills while it starts."""
    log: str = ""
    """A file that is printed instead of the stand-in's own lines."""
    exit_loading: int | None = None
    """Ends with this code instead of serving."""
    swallowed_terms: int = 1
    """SIGTERMs without an effect while it loads."""
    deaf: bool = False
    """Ignores every SIGTERM."""
    stop_seconds: float = 0.1
    """From SIGTERM to the end of a server without requests."""
    tokens_per_second: float = 100.0
    """Of each request."""
    prefill_seconds: float = 0.0
    """From a request's turn to its first token; the cache fills meanwhile."""
    first_request: Fate = "answer"
    """What becomes of the first completion, which is the supervisor's own."""
    refused_adapter: str = ""
    """The name of an adapter that cannot be loaded."""

    def to_env(self) -> str:
        """The value of the variable."""
        return json.dumps({name: value for name, value in asdict(self).items() if value != getattr(_DEFAULT, name)})

    @classmethod
    def from_env(cls, environment: Mapping[str, str]) -> Behaviour:
        """TypeError for a field that does not exist."""
        return cls(**json.loads(environment.get(VARIABLE) or "{}"))


_DEFAULT = Behaviour()
