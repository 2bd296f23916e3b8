"""What the operator and the supervisor agree on: names, ports, paths and the values that cross between them.

Standard library only, Python 3.10 and later: this file is copied into other people's vLLM images.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llmservice_runtime.str_enum import StrEnum as StrEnum
from llmservice_runtime.transfer import Transfer as Transfer
from llmservice_runtime.transfer import TransferStep as TransferStep

# Containers and ports of the pod.
SERVER_CONTAINER = "server"
RUNTIME_CONTAINER = "runtime"
INSPECT_CONTAINER = "inspect"
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
# Links to what was fetched, one for each artifact: the flags can name them before anybody knows the revision.
ARTIFACTS_DIR = f"{RUN_DIR}/artifacts"
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

# Commands, without their options.
INSTALL_COMMAND = ("python", "-m", "llmservice_runtime", "install", RUNTIME_DIR)
INSPECT_COMMAND = ("python", "-m", "llmservice_runtime", "inspect")
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


class FailureReason(StrEnum):
    """Why a server ended or could not start. failures.py says how each is recognised."""

    INVALID_FLAG = "InvalidFlag"
    INVALID_CONFIGURATION = "InvalidConfiguration"
    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_ACCESS_DENIED = "ModelAccessDenied"
    MODEL_REVISION_NOT_FOUND = "ModelRevisionNotFound"
    MODEL_TOKEN_REFUSED = "ModelTokenRefused"
    MODEL_DOWNLOAD_FAILED = "ModelDownloadFailed"
    MODEL_CORRUPT = "ModelCorrupt"
    WEIGHTS_UNREADABLE = "WeightsUnreadable"
    UNSUPPORTED_ARCHITECTURE = "UnsupportedArchitecture"
    REMOTE_CODE_REFUSED = "RemoteCodeRefused"
    MAX_MODEL_LEN_TOO_LARGE = "MaxModelLenTooLarge"
    KV_CACHE_TOO_SMALL = "KVCacheTooSmall"
    GPU_OUT_OF_MEMORY = "GPUOutOfMemory"
    GPU_MEMORY_BUSY = "GPUMemoryBusy"
    ACCELERATOR_MISSING = "AcceleratorMissing"
    ACCELERATOR_FAULT = "AcceleratorFault"
    PRECISION_UNSUPPORTED = "PrecisionUnsupported"
    QUANTIZATION_MISMATCH = "QuantizationMismatch"
    PARALLELISM_MISMATCH = "ParallelismMismatch"
    CONTEXT_EXTENSION_INVALID = "ContextExtensionInvalid"
    DRAFT_MODEL_MISMATCH = "DraftModelMismatch"
    COMPILATION_FAILED = "CompilationFailed"
    ILLEGAL_INSTRUCTION = "IllegalInstruction"
    MEMORY_LIMIT_EXCEEDED = "MemoryLimitExceeded"
    STORAGE_FULL = "StorageFull"
    SHARED_MEMORY_TOO_SMALL = "SharedMemoryTooSmall"
    API_KEY_UNUSABLE = "APIKeyUnusable"
    VERSION_MISMATCH = "VersionMismatch"
    ENGINE_MISSING = "EngineMissing"
    START_TIMEOUT = "StartTimeout"
    SMOKE_REQUEST_FAILED = "SmokeRequestFailed"
    ENGINE_HUNG = "EngineHung"
    ENGINE_DIED = "EngineDied"
    STARTUP_FAILED = "StartupFailed"


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
            "message": self.message,
            "remedy": self.remedy,
            "evidence": list(self.evidence),
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
            document = json.loads(text)
        except ValueError:
            return None
        if not isinstance(document, dict) or document.get("version") != VERSION:
            return None
        return cls.from_document(document)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Failure | None:
        """The failure in parsed JSON; None where a reason of a later version stands."""
        try:
            reason = FailureReason(document["reason"])
            phase = Phase(document["phase"]) if document.get("phase") else None
            return cls(
                reason=reason,
                message=str(document["message"]),
                remedy=str(document["remedy"]),
                evidence=tuple(str(line) for line in document.get("evidence", ())),
                phase=phase,
                exit_code=document.get("exitCode"),
                signal=document.get("signal"),
            )
        except (KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True)
class Measured:
    """What vLLM itself reported; None where it has not (yet)."""

    vllm_version: str | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None
    model_load_seconds: float | None = None
    model_memory_gib: float | None = None
    kv_cache_memory_gib: float | None = None
    engine_init_seconds: float | None = None
    start_seconds: float | None = None

    def to_document(self) -> dict[str, Any]:
        """The known values under their JSON names."""
        document = {json_name: getattr(self, name) for name, json_name in _MEASURED_NAMES.items()}
        return {key: value for key, value in document.items() if value is not None}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Measured:
        """The reverse; names of a later version are ignored."""
        return cls(**{name: document.get(json_name) for name, json_name in _MEASURED_NAMES.items()})


_MEASURED_NAMES: Mapping[str, str] = {
    "vllm_version": "vllmVersion",
    "kv_cache_tokens": "kvCacheTokens",
    "max_concurrency": "maxConcurrency",
    "max_model_len": "maxModelLen",
    "model_load_seconds": "modelLoadSeconds",
    "model_memory_gib": "modelMemoryGiB",
    "kv_cache_memory_gib": "kvCacheMemoryGiB",
    "engine_init_seconds": "engineInitSeconds",
    "start_seconds": "startSeconds",
}


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
    def from_document(cls, document: Mapping[str, Any]) -> AdapterState:
        """The reverse."""
        return cls(str(document["name"]), bool(document["loaded"]), str(document.get("message", "")))


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
            document = json.loads(text)
            return cls(int(document["drain"]["cut"])) if document["version"] == VERSION else None
        except (KeyError, TypeError, ValueError):
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
            document = json.loads(text)
            if document["version"] != VERSION:
                return None
            failure, transfer = document.get("failure"), document.get("transfer")
            return cls(
                phase=Phase(document["phase"]),
                started=bool(document["started"]),
                ready=bool(document["ready"]),
                progress=str(document["progress"]),
                phase_seconds=float(document["phaseSeconds"]),
                start_budget_seconds=document.get("startBudgetSeconds"),
                usual_start_seconds=document.get("usualStartSeconds"),
                slow=bool(document.get("slow", False)),
                hung=bool(document.get("hung", False)),
                model_names=tuple(document["modelNames"]),
                measured=Measured.from_document(document["measured"]),
                transfer=Transfer.from_document(transfer) if transfer else None,
                adapters=tuple(AdapterState.from_document(item) for item in document.get("adapters", ())),
                adapters_hash=str(document.get("adaptersHash", "")),
                failure=Failure.from_document(failure) if failure else None,
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            return None
