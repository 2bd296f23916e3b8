"""The contract between operator and pod: names, ports, paths, and the documents that they exchange.

Standard library only, Python 3.10 and later: this package runs in users' vLLM images.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from llmservice_vllm.paths import HEALTH

from llmservice_runtime.bounded_json import MAX_BYTES, Reader, Refused, UnknownWord, clean, parse
from llmservice_runtime.failures.reasons import FailureReason as FailureReason
from llmservice_runtime.str_enum import StrEnum as StrEnum

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
REQUESTS_IN_FLIGHT = "llmservice_server_requests_in_flight"
"""The metric that autoscaling and scale-downs read."""
REQUESTS_BEGUN = "llmservice_server_requests_total"
"""The counter by which autoscaling knows of requests between two reads; absent in pods of earlier versions."""
LAST_REQUEST = "llmservice_server_last_request_timestamp_seconds"
"""The time, method and path of the last one that was counted; absent in pods of earlier versions."""

# Paths in the server container.
RUNTIME_DIR = "/llmservice/runtime"
RUN_DIR = "/llmservice/run"
DRAIN_FILE = f"{RUN_DIR}/drain"
HOME_DIR = "/home/llmservice"
TMP_DIR = "/tmp"
CACHE_DIR = "/llmservice/cache"
START_CACHE_DIR = "/llmservice/start-cache"
MODELS_DIR = "/llmservice/models"
SOURCE_DIR = "/llmservice/source"
# Written by the fetch container, read-only in the server: its socket, and a link for each artifact. The links have
# fixed names, so that flags can name them before the revision is known.
FETCH_DIR = "/llmservice/fetch"
FETCH_SOCKET = f"{FETCH_DIR}/socket"
ARTIFACTS_DIR = f"{FETCH_DIR}/artifacts"
MODEL_ARTIFACT = "model"
DRAFT_ARTIFACT = "draft"
# Claims and images of the draft model and of adapters.
DRAFT_DIR = "/llmservice/draft"
ADAPTER_SOURCES_DIR = "/llmservice/adapter-sources"
# The mounted ConfigMap with the list of adapters.
ADAPTERS_DIR = "/llmservice/adapters"
ADAPTERS_KEY = "adapters.json"
# The mounted Secret with the clients' keys.
API_KEYS_DIR = "/llmservice/api-keys"
API_KEYS_FILE = f"{API_KEYS_DIR}/keys"
# Authenticates requests from inside the pod to vLLM's middleware.
POD_TOKEN_FILE = f"{RUN_DIR}/token"
POD_TOKEN_HEADER = "X-LLMService-Token"
CHAT_TEMPLATE_DIR = "/llmservice/chat-template"
SHM_DIR = "/dev/shm"
TERMINATION_LOG = "/dev/termination-log"

# Asked through a Service, to see whether an activator answers; one that comes to a server must not look like use.
ACTIVATOR_PATH = "/llmservice.dev/activator"
# On the answer to a request that a server refuses because it ends; the request was not worked on.
DRAINING_HEADER = "X-LLMService-Draining"
# Paths that need no API key: health and metrics, which contain nothing of the requests.
KEYLESS_PATHS = HEALTH | {"/metrics"}
# Paths that are not counted as requests and not refused during a drain; all but the last are vLLM's.
EXEMPT_PATHS = KEYLESS_PATHS | {"/version", "/load", ACTIVATOR_PATH}

# Environment variables of the supervisor and the middleware.
DRAIN_FILE_ENV = "LLMSERVICE_DRAIN_FILE"
API_KEYS_FILE_ENV = "LLMSERVICE_API_KEYS_FILE"
# Overrides of the plan in spec.runtime.env, in seconds.
START_SECONDS_ENV = "LLMSERVICE_START_SECONDS"
STALL_SECONDS_ENV = "LLMSERVICE_STALL_SECONDS"
HANG_UNREADY_SECONDS_ENV = "LLMSERVICE_HANG_UNREADY_SECONDS"
HANG_RESTART_SECONDS_ENV = "LLMSERVICE_HANG_RESTART_SECONDS"
API_KEY_ENV = "VLLM_API_KEY"
HF_TOKEN_ENV = "HF_TOKEN"

# Commands without their options. -s and -P: Python imports nothing from a home or working directory. A user's image
# may have a Python before 3.11, without -P, so the server container uses environment variables instead.
OPERATOR_PYTHON = ("python", "-s", "-P", "-m")
INSTALL_COMMAND = (*OPERATOR_PYTHON, "llmservice_runtime", "install", RUNTIME_DIR)
INSPECT_COMMAND = (*OPERATOR_PYTHON, "llmservice_fetch", "inspect")
FETCH_COMMAND = (*OPERATOR_PYTHON, "llmservice_fetch", "serve")
SERVE_COMMAND = ("python3", "-m", "llmservice_runtime", "serve")
DRAIN_MIDDLEWARE = "llmservice_runtime.middleware.DrainMiddleware"

# Times in seconds. PROPAGATION: until the removal of an endpoint has reached every proxy. TEARDOWN: vLLM's end after
# its last stream, measured at 8.5 s.
PROPAGATION_SECONDS = 10
TEARDOWN_SECONDS = 20
# For how long clients may reuse an idle connection: httpx, and with it OpenAI's client, keeps it for 5 s.
POOL_SECONDS = 6
# Without requests for this long, the Service no longer sends any.
LULL_SECONDS = 3
# For how long vLLM keeps an idle connection: longer than common pools, so that the client closes it first.
KEEP_ALIVE_SECONDS = 3660
HANG_UNREADY_SECONDS = 30
HANG_RESTART_SECONDS = 90
# The start budget where the model is unknown, and the limit of the pod's startup probe. The supervisor applies the
# budget, continues past it while the start makes progress, and ends before the probe, so that a reason is reported.
START_SECONDS = 3600
START_CEILING_SECONDS = 7200

# Kubernetes keeps this many bytes of a termination message.
TERMINATION_LIMIT = 4096
VERSION = 1
# Limits of a pod's reports.
MAX_ADAPTERS = 64
MAX_TEXT = 1024
_MOST_LINES = 256
_LONGEST_NAME, _MOST_GIB = 128, 100_000


T = TypeVar("T")


class OtherVersion(Refused):
    """A document of another version."""


def grace_period_seconds(drain_seconds: int, propagation_seconds: int = PROPAGATION_SECONDS) -> int:
    """The pod's terminationGracePeriodSeconds: delay, then drain, then teardown."""
    return propagation_seconds + drain_seconds + TEARDOWN_SECONDS


class Phase(StrEnum):
    """Phases of a server, in the order of a normal lifecycle."""

    PREFLIGHT = "Preflight"
    FETCHING = "Fetching"
    LOADING = "Loading"
    SMOKE = "Smoke"
    SERVING = "Serving"
    DRAINING = "Draining"
    FAILED = "Failed"


@dataclass(frozen=True)
class GPU:
    """The card that a server has, as its driver reports it; of several, the smallest."""

    name: str
    memory_gib: float

    def to_document(self) -> dict[str, Any]:
        """As JSON."""
        return {"name": clean(self.name), "memoryGiB": round(self.memory_gib, 2)}

    @classmethod
    def from_document(cls, document: object) -> GPU | None:
        """The inverse; None where it is invalid."""
        try:
            given = Reader(document, "gpu")
            return cls(given.word("name", _LONGEST_NAME), given.number("memoryGiB", 0, _MOST_GIB))
        except Refused:
            return None


@dataclass(frozen=True)
class Failure:
    """A classified failure: in the termination message, in /state and in the LLMService's status."""

    reason: FailureReason
    message: str
    remedy: str
    evidence: tuple[str, ...] = ()
    phase: Phase | None = None
    exit_code: int | None = None
    signal: int | None = None
    gpu: GPU | None = None
    """None: on CPUs, or not seen before it failed."""

    @property
    def ends_with(self) -> int:
        """The exit code of a supervisor that fails with it; never 0."""
        return self.exit_code or (128 + self.signal if self.signal else 1)

    def to_json(self, limit: int = TERMINATION_LIMIT) -> str:
        """JSON of at most `limit` bytes: evidence is dropped first, then the ends of the texts."""
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
            # Texts may quote file names, which may not be valid Unicode.
            "message": clean(self.message),
            "remedy": clean(self.remedy),
            "evidence": [clean(line) for line in self.evidence],
            "phase": None if self.phase is None else str(self.phase),
            "exitCode": self.exit_code,
            "signal": self.signal,
            "gpu": None if self.gpu is None else self.gpu.to_document(),
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
        """The failure in a termination message; None for any other text, such as a log's tail."""
        try:
            return cls.from_document(_versioned(text))
        except Refused:
            return None

    @classmethod
    def from_document(cls, document: object) -> Failure | None:
        """The failure in parsed JSON; None where it is invalid. A reason of a later version becomes EngineDied, whose
        restarts decide how it ends, with the message and remedy that came with it."""
        try:
            given = document if isinstance(document, Reader) else Reader(document)
            return cls(
                reason=_known(lambda: given.one_of("reason", FailureReason)) or FailureReason.ENGINE_DIED,
                message=given.text("message"),
                remedy=given.text("remedy"),
                evidence=given.texts("evidence", _MOST_LINES, TERMINATION_LIMIT),
                phase=_known(lambda: given.one_of("phase", Phase)) if given.has("phase") else None,
                exit_code=given.integer("exitCode", -(2**31), 2**32) if given.has("exitCode") else None,
                signal=given.integer("signal", 0, 255) if given.has("signal") else None,
                gpu=GPU.from_document(given.value("gpu")),
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
        """The inverse. Refused where it is invalid."""
        given = Reader(document, "adapters")
        return cls(given.word("name"), given.flag("loaded"), given.text("message", default=""))


@dataclass(frozen=True)
class DrainReport:
    """The termination message of a server that was stopped (exit code 0) but cut requests."""

    cut: int
    """Requests cut by the drain timeout."""

    def to_json(self) -> str:
        """One line of JSON that Failure.from_json does not accept."""
        return json.dumps({"version": VERSION, "drain": {"cut": self.cut}}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> DrainReport | None:
        """The report in a termination message; None for any other text."""
        try:
            return cls(_versioned(text).within("drain").integer("cut"))
        except Refused:
            return None


@dataclass(frozen=True)
class CacheRoom:
    """Bytes, when a fetch began."""

    used: int = 0
    """By model files, complete and partial."""
    available: int = 0
    freed: int = 0
    """By pruning at this start."""

    def to_document(self) -> dict[str, int]:
        """As JSON."""
        return {"usedBytes": self.used, "availableBytes": self.available, "freedBytes": self.freed}

    @classmethod
    def from_document(cls, document: object) -> CacheRoom:
        """The inverse. Refused where the document is invalid."""
        given = Reader(document, "cache")
        return cls(given.integer("usedBytes"), given.integer("availableBytes"), given.integer("freedBytes"))


class TransferStep(StrEnum):
    """What a fetch is doing."""

    LISTING = "Listing"
    WAITING = "Waiting"
    DOWNLOADING = "Downloading"
    VERIFYING = "Verifying"


@dataclass(frozen=True)
class Transfer:
    """Progress of one artifact's fetch. Bytes; None while unknown."""

    artifact: str
    step: TransferStep
    bytes_done: int = 0
    bytes_total: int | None = None
    bytes_per_second: float | None = None

    @property
    def percent(self) -> int | None:
        """Integer percent, rounded down; 100 only when complete."""
        return None if not self.bytes_total else min(100, self.bytes_done * 100 // self.bytes_total)

    @property
    def summary(self) -> str:
        """One line for people."""
        return f"{self.artifact}: {self.step}" + ("" if self.percent is None else f" {self.percent}%")

    @property
    def eta_seconds(self) -> int | None:
        """Estimated seconds left at the current rate; None without a rate."""
        if (
            self.step not in (TransferStep.DOWNLOADING, TransferStep.VERIFYING)
            or not self.bytes_total
            or (self.bytes_per_second or 0) < 1
        ):
            return None
        return round(max(0, self.bytes_total - self.bytes_done) / (self.bytes_per_second or 1))

    def to_document(self) -> dict[str, Any]:
        """As JSON, with the derived values."""
        document: dict[str, Any] = {
            "artifact": self.artifact,
            "step": str(self.step),
            "bytesDone": self.bytes_done,
            "bytesTotal": self.bytes_total,
            "bytesPerSecond": None if self.bytes_per_second is None else round(self.bytes_per_second),
            "percent": self.percent,
            "etaSeconds": self.eta_seconds,
        }
        return {key: value for key, value in document.items() if value is not None}

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_document(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Transfer:
        """The inverse of to_json. Refused, a ValueError, where the text is invalid."""
        return cls.from_document(parse(text))

    @classmethod
    def from_document(cls, document: object) -> Transfer:
        """The inverse of to_document. Refused where it is invalid."""
        given = Reader(document, "transfer")
        return cls(
            artifact=given.word("artifact"),
            step=given.one_of("step", TransferStep),
            bytes_done=given.integer("bytesDone", default=0),
            bytes_total=given.integer("bytesTotal") if given.has("bytesTotal") else None,
            bytes_per_second=given.number("bytesPerSecond") if given.has("bytesPerSecond") else None,
        )


@dataclass(frozen=True)
class Measured:
    """Values of this start; None while unknown."""

    vllm_version: str | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None
    model_load_seconds: float | None = None
    model_memory_gib: float | None = None
    kv_cache_memory_gib: float | None = None
    engine_init_seconds: float | None = None
    start_seconds: float | None = None
    start_cache: str | None = None
    """New, Reused or Unused."""
    start_cache_message: str | None = None
    """Why it is unused, and what to do."""

    def to_document(self) -> dict[str, Any]:
        """The known values under their JSON names."""
        document = {json_name: getattr(self, name) for name, json_name in _NAMES.items()}
        return {key: value for key, value in document.items() if value is not None}

    @classmethod
    def from_document(cls, document: object) -> Measured:
        """The reverse; names of a later version are ignored. Refused where a value is not of its type and range."""
        given = Reader(document, "measured")
        found: dict[str, Any] = {}
        for name, json_name in _NAMES.items():
            if given.has(json_name):
                found[name] = _KINDS.get(name, Reader.number)(given, json_name)
        return cls(**found)


_NAMES: Mapping[str, str] = {
    "vllm_version": "vllmVersion",
    "kv_cache_tokens": "kvCacheTokens",
    "max_concurrency": "maxConcurrency",
    "max_model_len": "maxModelLen",
    "model_load_seconds": "modelLoadSeconds",
    "model_memory_gib": "modelMemoryGiB",
    "kv_cache_memory_gib": "kvCacheMemoryGiB",
    "engine_init_seconds": "engineInitSeconds",
    "start_seconds": "startSeconds",
    "start_cache": "startCache",
    "start_cache_message": "startCacheMessage",
}
# All others are floats.
_KINDS: Mapping[str, Callable[[Reader, str], Any]] = {
    "vllm_version": Reader.word,
    "start_cache": Reader.word,
    "start_cache_message": Reader.text,
    "kv_cache_tokens": Reader.integer,
    "max_model_len": Reader.integer,
}


@dataclass(frozen=True)
class State:
    """The body of GET /state."""

    phase: Phase
    started: bool = False
    ready: bool = False
    progress: str = ""
    phase_seconds: float = 0.0
    start_budget_seconds: float | None = None
    """Start budget without fetching; None once started."""
    usual_start_seconds: float | None = None
    """Usual start time without fetching; None where unknown, and once started."""
    slow: bool = False
    """The start exceeds its budget and makes progress. Not a failure."""
    hung: bool = False
    """Requests wait for an engine without progress: not ready, and restarted if that persists."""
    unprobed: bool = False
    """Ready, and no probe of the kubelet has arrived for three of its periods."""
    model_names: tuple[str, ...] = ()
    measured: Measured = field(default_factory=Measured)
    transfer: Transfer | None = None
    cache: CacheRoom | None = None
    adapters: tuple[AdapterState, ...] = ()
    adapters_hash: str = ""
    """Digest of the list that `adapters` belongs to; empty without a list."""
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
        if self.unprobed:
            document["unprobed"] = True
        if self.failure is not None:
            document["failure"] = self.failure._document()
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> State | None:
        """The state in a body of /state; None where it is invalid or of another version."""
        try:
            return cls.read(text)
        except Refused:
            return None

    @classmethod
    def read(cls, text: str) -> State:
        """The state in a body of /state. Refused where it is invalid or of another version."""
        given = _versioned(text, MAX_BYTES)
        return cls(
            # A later runtime may have more phases; `started` is independent of them.
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
            unprobed=given.flag("unprobed", default=False),
            model_names=given.words("modelNames", 2 * MAX_ADAPTERS, MAX_TEXT),
            measured=Measured.from_document(given.value("measured")),
            transfer=_known(lambda: Transfer.from_document(given.value("transfer"))) if given.has("transfer") else None,
            cache=CacheRoom.from_document(given.value("cache")) if given.has("cache") else None,
            adapters=tuple(map(AdapterState.from_document, given.items("adapters", MAX_ADAPTERS))),
            adapters_hash=given.word("adaptersHash", default=""),
            failure=Failure.from_document(given.value("failure")) if given.has("failure") else None,
        )


def _known(read: Callable[[], T]) -> T | None:
    """The result of `read`; None for an enumeration value of a later runtime, so that the rest is still used."""
    try:
        return read()
    except UnknownWord:
        return None


def _versioned(text: str, max_bytes: int = 4 * TERMINATION_LIMIT) -> Reader:
    """The object in a text. Refused where it is invalid or of another version."""
    given = Reader(parse(text, max_bytes))
    if given.integer("version") != VERSION:
        raise OtherVersion("its version is another")
    return given
