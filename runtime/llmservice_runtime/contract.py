"""What the operator and the supervisor agree on: names, ports, paths and the values that cross between them.

Standard library only, Python 3.10 and later: this file is copied into other people's vLLM images.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from llmservice_runtime.bounded_json import MAX_BYTES, Reader, Refused, UnknownWord, clean, parse
from llmservice_runtime.failures.reasons import FailureReason as FailureReason
from llmservice_runtime.fetching.cache_room import CacheRoom as CacheRoom
from llmservice_runtime.fetching.transfer import Transfer as Transfer
from llmservice_runtime.fetching.transfer import TransferStep as TransferStep
from llmservice_runtime.str_enum import StrEnum as StrEnum
from llmservice_runtime.supervisor.measured import Measured as Measured

# Containers and ports of the pod.
SERVER_CONTAINER = "server"
RUNTIME_CONTAINER = "runtime"
INSPECT_CONTAINER = "inspect"
FETCH_CONTAINER = "fetch"
HTTP_PORT = 8000
HTTP_PORT_NAME = "http"
STATE_PORT = 8081
STATE_PORT_NAME = "state"
STARTUP_PATH = "/startupz"
READY_PATH = "/readyz"
LIVE_PATH = "/livez"
STATE_PATH = "/state"
METRICS_PATH = "/metrics"

# Where things lie in the server's file system.
RUNTIME_DIR = "/llmservice/runtime"
RUN_DIR = "/llmservice/run"
DRAIN_FILE = f"{RUN_DIR}/drain"
HOME_DIR = "/home/llmservice"
TMP_DIR = "/tmp"
CACHE_DIR = "/llmservice/cache"
MODELS_DIR = "/llmservice/models"
SOURCE_DIR = "/llmservice/source"
# Written by the fetch container, read-only in the server: its socket, and links to what it fetched, one for each
# artifact: the flags can name them before anybody knows the revision.
FETCH_DIR = "/llmservice/fetch"
FETCH_SOCKET = f"{FETCH_DIR}/socket"
ARTIFACTS_DIR = f"{FETCH_DIR}/artifacts"
MODEL_ARTIFACT = "model"
DRAFT_ARTIFACT = "draft"
# Claims and images of the draft model and of adapters.
DRAFT_DIR = "/llmservice/draft"
ADAPTER_SOURCES_DIR = "/llmservice/adapter-sources"
# The mounted ConfigMap that says which adapters are to be served.
ADAPTERS_DIR = "/llmservice/adapters"
ADAPTERS_KEY = "adapters.json"
# The mounted Secret with the clients' keys.
API_KEYS_DIR = "/llmservice/api-keys"
API_KEYS_FILE = f"{API_KEYS_DIR}/keys"
# By which vLLM's middleware knows requests from inside the pod.
POD_TOKEN_FILE = f"{RUN_DIR}/token"
POD_TOKEN_HEADER = "X-LLMService-Token"
CHAT_TEMPLATE_DIR = "/llmservice/chat-template"
SHM_DIR = "/dev/shm"
TERMINATION_LOG = "/dev/termination-log"

# Paths of vLLM's that neither count as work nor are refused while draining.
EXEMPT_PATHS = frozenset({"/health", "/metrics", "/ping", "/version", "/load"})
# Those of them for which nobody has to show a key: health and metrics. They tell nothing of what is asked of the model.
KEYLESS_PATHS = frozenset({"/health", "/metrics", "/ping"})

# Environment variables that the supervisor and the middleware read (the rest is vLLM's own).
DRAIN_FILE_ENV = "LLMSERVICE_DRAIN_FILE"
API_KEYS_FILE_ENV = "LLMSERVICE_API_KEYS_FILE"
# For who knows better than the plan, in spec.runtime.env: seconds.
START_SECONDS_ENV = "LLMSERVICE_START_SECONDS"
STALL_SECONDS_ENV = "LLMSERVICE_STALL_SECONDS"
HANG_UNREADY_SECONDS_ENV = "LLMSERVICE_HANG_UNREADY_SECONDS"
HANG_RESTART_SECONDS_ENV = "LLMSERVICE_HANG_RESTART_SECONDS"
API_KEY_ENV = "VLLM_API_KEY"
HF_TOKEN_ENV = "HF_TOKEN"

# Commands, without their options. Python imports nothing from a home or working directory: -s, -P. An image of the
# user's may have a Python before 3.11, which knows no -P, so the server's container has variables for that.
OPERATOR_PYTHON = ("python", "-s", "-P", "-m")
INSTALL_COMMAND = (*OPERATOR_PYTHON, "llmservice_runtime", "install", RUNTIME_DIR)
INSPECT_COMMAND = (*OPERATOR_PYTHON, "llmservice_fetch", "inspect")
FETCH_COMMAND = (*OPERATOR_PYTHON, "llmservice_fetch", "serve")
SERVE_COMMAND = ("python3", "-m", "llmservice_runtime", "serve")
DRAIN_MIDDLEWARE = "llmservice_runtime.middleware.DrainMiddleware"

# Time. The removal of an endpoint takes a while to reach every proxy; vLLM's teardown after its last stream was
# measured at 8.5 s.
PROPAGATION_SECONDS = 10
TEARDOWN_SECONDS = 20
# For how long a client may take a connection that was idle for good: httpx, and with it OpenAI's client, keeps it 5 s.
POOL_SECONDS = 6
# So long without a request, and the Service sends none any more.
LULL_SECONDS = 3
# For how long vLLM keeps an idle connection: longer than any common pool, so that it is always the client that lets go.
KEEP_ALIVE_SECONDS = 3660
HANG_UNREADY_SECONDS = 30
HANG_RESTART_SECONDS = 90
# The start budget where nothing is known of the model, and the pod's startup probe, which is fixed: the supervisor
# keeps the budget, goes on past it while the start moves, and ends before the probe would end it without a word.
START_SECONDS = 3600
START_CEILING_SECONDS = 7200

# Kubernetes keeps this many bytes of a termination message.
TERMINATION_LIMIT = 4096
VERSION = 1
# Of what a pod says of itself.
MAX_ADAPTERS = 64
MAX_TEXT = 1024
_MOST_LINES = 256


T = TypeVar("T")


class OtherVersion(Refused):
    """A document of a version that this one does not read."""


def grace_period_seconds(drain_seconds: int, propagation_seconds: int = PROPAGATION_SECONDS) -> int:
    """The pod's terminationGracePeriodSeconds: delay, then drain, then teardown."""
    return propagation_seconds + drain_seconds + TEARDOWN_SECONDS


class Phase(StrEnum):
    """Where a server stands, in the order of a normal life."""

    PREFLIGHT = "Preflight"
    FETCHING = "Fetching"
    LOADING = "Loading"
    SMOKE = "Smoke"
    SERVING = "Serving"
    DRAINING = "Draining"
    FAILED = "Failed"


@dataclass(frozen=True)
class Failure:
    """A classified end, as it stands in the termination message and in the status."""

    reason: FailureReason
    message: str
    remedy: str
    evidence: tuple[str, ...] = ()
    phase: Phase | None = None
    exit_code: int | None = None
    signal: int | None = None

    def to_json(self, limit: int = TERMINATION_LIMIT) -> str:
        """JSON of at most `limit` bytes: evidence is given up first, then the ends of the texts."""
        failure = self
        while True:
            text = json.dumps(failure._document(), separators=(",", ":"), ensure_ascii=False)
            if len(text.encode()) <= limit:
                return text
            failure = failure._shorter()

    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "version": VERSION,
            "reason": str(self.reason),
            # Texts may quote names of files, which need not be Unicode.
            "message": clean(self.message),
            "remedy": clean(self.remedy),
            "evidence": [clean(line) for line in self.evidence],
            "phase": None if self.phase is None else str(self.phase),
            "exitCode": self.exit_code,
            "signal": self.signal,
        }
        return {key: value for key, value in document.items() if value is not None}

    def _shorter(self) -> Failure:
        if self.evidence:
            return replace(self, evidence=self.evidence[1:])
        longest = "message" if len(self.message) >= len(self.remedy) else "remedy"
        text: str = getattr(self, longest)
        if len(text) < 16:
            raise ValueError("the limit leaves no room for a failure")
        shortened = text[: len(text) * 3 // 4] + "…"
        return replace(self, message=shortened) if longest == "message" else replace(self, remedy=shortened)

    @classmethod
    def from_json(cls, text: str) -> Failure | None:
        """The failure in a termination message; None where the text is something else (a log's tail, say)."""
        try:
            return cls.from_document(_versioned(text))
        except Refused:
            return None

    @classmethod
    def from_document(cls, document: object) -> Failure | None:
        """The failure in parsed JSON; None where a reason of a later version stands, or anything else is wrong."""
        try:
            given = document if isinstance(document, Reader) else Reader(document)
            return cls(
                reason=given.one_of("reason", FailureReason),
                message=given.text("message"),
                remedy=given.text("remedy"),
                evidence=given.texts("evidence", _MOST_LINES, TERMINATION_LIMIT),
                phase=_known(lambda: given.one_of("phase", Phase)) if given.has("phase") else None,
                exit_code=given.integer("exitCode", -(2**31), 2**32) if given.has("exitCode") else None,
                signal=given.integer("signal", 0, 255) if given.has("signal") else None,
            )
        except Refused:
            return None


@dataclass(frozen=True)
class AdapterState:
    """One adapter of the mounted list: served, or why not (yet)."""

    name: str
    loaded: bool
    message: str = ""

    def to_document(self) -> dict[str, Any]:
        """As JSON."""
        return {"name": self.name, "loaded": self.loaded} | ({"message": self.message} if self.message else {})

    @classmethod
    def from_document(cls, document: object) -> AdapterState:
        """The reverse. Refused where it is none."""
        given = Reader(document, "adapters")
        return cls(given.word("name"), given.flag("loaded"), given.text("message", default=""))


@dataclass(frozen=True)
class DrainReport:
    """The termination message of a server that was told to end and did, with exit code 0, but not without loss."""

    cut: int
    """Requests that outlived the drain timeout and were ended."""

    def to_json(self) -> str:
        """One line of JSON; never one that Failure.from_json takes for a failure."""
        return json.dumps({"version": VERSION, "drain": {"cut": self.cut}}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> DrainReport | None:
        """The report in a termination message; None where the text is something else."""
        try:
            return cls(_versioned(text).within("drain").integer("cut"))
        except Refused:
            return None


@dataclass(frozen=True)
class State:
    """The body of GET /state."""

    phase: Phase
    started: bool = False
    ready: bool = False
    progress: str = ""
    phase_seconds: float = 0.0
    start_budget_seconds: float | None = None
    """What a start may take, fetching apart, before it must show that it moves; None once it has started."""
    usual_start_seconds: float | None = None
    """What it usually takes, fetching apart; None where nobody knows, and once it has started."""
    slow: bool = False
    """It starts, it moves, and it has used up its budget. Not a failure."""
    hung: bool = False
    """It served, and requests wait for an engine that does not move: not ready, and restarted if it stays so."""
    model_names: tuple[str, ...] = ()
    measured: Measured = field(default_factory=Measured)
    transfer: Transfer | None = None
    cache: CacheRoom | None = None
    adapters: tuple[AdapterState, ...] = ()
    adapters_hash: str = ""
    """Of the mounted list that `adapters` is about; empty where there is none."""
    failure: Failure | None = None

    def to_json(self) -> str:
        """One line of JSON."""
        document: dict[str, Any] = {
            "version": VERSION,
            "phase": str(self.phase),
            "started": self.started,
            "ready": self.ready,
            "progress": self.progress,
            "phaseSeconds": round(self.phase_seconds, 1),
            "modelNames": list(self.model_names),
            "measured": self.measured.to_document(),
        }
        if self.start_budget_seconds is not None:
            document |= {"startBudgetSeconds": self.start_budget_seconds, "slow": self.slow}
        if self.usual_start_seconds is not None:
            document["usualStartSeconds"] = self.usual_start_seconds
        if self.transfer is not None:
            document["transfer"] = self.transfer.to_document()
        if self.cache is not None:
            document["cache"] = self.cache.to_document()
        if self.adapters_hash:
            document["adapters"] = [adapter.to_document() for adapter in self.adapters]
            document["adaptersHash"] = self.adapters_hash
        if self.hung:
            document["hung"] = True
        if self.failure is not None:
            document["failure"] = self.failure._document()
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> State | None:
        """The state in a body of /state; None where it is of another version or broken."""
        try:
            return cls.read(text)
        except Refused:
            return None

    @classmethod
    def read(cls, text: str) -> State:
        """The same; Refused says what is wrong with it."""
        given = _versioned(text, MAX_BYTES)
        return cls(
            # A later runtime may have more phases; whether it serves is said apart from them.
            phase=_known(lambda: given.one_of("phase", Phase))
            or (Phase.SERVING if given.flag("started") else Phase.LOADING),
            started=given.flag("started"),
            ready=given.flag("ready"),
            progress=given.text("progress", MAX_TEXT),
            phase_seconds=given.number("phaseSeconds"),
            start_budget_seconds=given.number("startBudgetSeconds") if given.has("startBudgetSeconds") else None,
            usual_start_seconds=given.number("usualStartSeconds") if given.has("usualStartSeconds") else None,
            slow=given.flag("slow", default=False),
            hung=given.flag("hung", default=False),
            model_names=given.words("modelNames", 2 * MAX_ADAPTERS, MAX_TEXT),
            measured=Measured.from_document(given.value("measured")),
            transfer=_known(lambda: Transfer.from_document(given.value("transfer"))) if given.has("transfer") else None,
            cache=CacheRoom.from_document(given.value("cache")) if given.has("cache") else None,
            adapters=tuple(map(AdapterState.from_document, given.items("adapters", MAX_ADAPTERS))),
            adapters_hash=given.word("adaptersHash", default=""),
            failure=Failure.from_document(given.value("failure")) if given.has("failure") else None,
        )


def _known(read: Callable[[], T]) -> T | None:
    """What is read; None where a word stands that only a later runtime knows: no reason to refuse the rest."""
    try:
        return read()
    except UnknownWord:
        return None


def _versioned(text: str, max_bytes: int = 4 * TERMINATION_LIMIT) -> Reader:
    """The object in a text; Refused where it is none, or of another version."""
    given = Reader(parse(text, max_bytes))
    if given.integer("version") != VERSION:
        raise OtherVersion("its version is another")
    return given
