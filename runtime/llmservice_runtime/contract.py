"""The contract between operator and pod: names, ports, paths, and the documents that they exchange.

Standard library only, Python 3.10 and later: this package runs in users' vLLM images.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from llmservice_vllm.paths import HEALTH

from llmservice_runtime.bounded_json import MAX_BYTES, Reader, Refused, UnknownWord, clean, parse
from llmservice_runtime.documents import Document, Field, to_line
from llmservice_runtime.failures.reasons import FailureReason as FailureReason
from llmservice_runtime.str_enum import StrEnum as StrEnum

# Containers and ports of the pod.
SERVER_CONTAINER = "server"
RUNTIME_CONTAINER = "runtime"
INSPECT_CONTAINER = "inspect"
FETCH_CONTAINER = "fetch"
HTTP_PORT = 8000
HTTP_PORT_NAME = "http"
LEADER_PORT_NAME = "leader-http"
"""The same port in pods of groups, of which only leaders answer: a Service of replicas of one pod, which selects all
pods of the LLMService while they move to several nodes, finds no port in these."""
STATE_PORT = 8081
STATE_PORT_NAME = "state"
GROUP_PORT_NAME = "group"
GROUP_PORT = 8083
"""Where the leader of a group hears the supervisors of the other pods."""
MASTER_PORT = 29501
DATA_PARALLEL_PORT = 29550
"""Where vLLM's processes of a group find each other."""
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
HYBRID = "hybrid"
"""spec.parallelism.dataParallelMode: each pod of a group answers requests."""
# Of a pod in a group: the first three are LeaderWorkerSet's own.
GROUP_RANK_ENV = "LWS_WORKER_INDEX"
GROUP_LEADER_ENV = "LWS_LEADER_ADDRESS"
GROUP_TOKEN_ENV = "LLMSERVICE_GROUP_TOKEN"
POD_NAME_ENV = "LLMSERVICE_POD_NAME"
POD_IP_ENV = "LLMSERVICE_POD_IP"
INTERFACE_ENV = "LLMSERVICE_INTERFACE"
"""spec.parallelism.network.interface."""
NODE_NAME_ENV = "LLMSERVICE_NODE_NAME"
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
_TEXT = Field(longest=TERMINATION_LIMIT, is_prose=True, written=clean)
_LINES = Field(
    items=256, longest=TERMINATION_LIMIT, is_prose=True, written=lambda lines: [clean(line) for line in lines]
)


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
class GPU(Document):
    """The card that a server has, as its driver reports it; of several, the smallest."""

    name: Annotated[str, Field(longest=128, written=clean)]
    memory_gib: Annotated[float, Field("memoryGiB", most=100_000, written=lambda gib: round(gib, 2))]


@dataclass(frozen=True)
class Failure(Document):
    """A classified failure: in the termination message, in /state and in the LLMService's status.

    A reason of a later version becomes EngineDied, whose restarts decide how it ends, with the message and remedy that
    came with it. Texts may quote file names, which may not be valid Unicode.
    """

    reason: Annotated[FailureReason, Field(forgives=UnknownWord, instead=FailureReason.ENGINE_DIED)]
    message: Annotated[str, _TEXT]
    remedy: Annotated[str, _TEXT]
    evidence: Annotated[tuple[str, ...], _LINES] = ()
    phase: Annotated[Phase | None, Field(forgives=UnknownWord)] = None
    exit_code: Annotated[int | None, Field(least=-(2**31), most=2**32)] = None
    signal: Annotated[int | None, Field(most=255)] = None
    gpu: Annotated[GPU | None, Field(forgives=Refused)] = None
    """None: on CPUs, or not seen before it failed."""

    @property
    def ends_with(self) -> int:
        """The exit code of a supervisor that fails with it; never 0."""
        return self.exit_code or (128 + self.signal if self.signal else 1)

    def to_json(self, limit: int = TERMINATION_LIMIT) -> str:
        """JSON of at most `limit` bytes: evidence is dropped first, then the ends of the texts."""
        failure = self
        while True:
            text = to_line(failure.to_document())
            if len(text.encode()) <= limit:
                return text
            failure = failure._shorter()

    def to_document(self) -> dict[str, Any]:
        """As JSON, with the version: it may be a whole termination message."""
        return {"version": VERSION} | super().to_document()

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


@dataclass(frozen=True)
class AdapterState(Document):
    """One adapter of the mounted list: served, or why not (yet)."""

    name: str
    loaded: bool
    message: Annotated[str, Field(longest=TERMINATION_LIMIT, is_prose=True, unwritten=("",))] = ""


@dataclass(frozen=True)
class DrainReport(Document):
    """The termination message of a server that was stopped (exit code 0) but cut requests."""

    cut: int
    """Requests cut by the drain timeout."""

    def to_json(self) -> str:
        """One line of JSON that Failure.from_json does not accept."""
        return to_line({"version": VERSION, "drain": self.to_document()})

    @classmethod
    def from_json(cls, text: str) -> DrainReport | None:
        """The report in a termination message; None for any other text."""
        try:
            return cls.from_document(_versioned(text).within("drain"))
        except Refused:
            return None


@dataclass(frozen=True)
class CacheRoom(Document):
    """Bytes, when a fetch began."""

    used: Annotated[int, Field("usedBytes", is_required=True)] = 0
    """By model files, complete and partial."""
    available: Annotated[int, Field("availableBytes", is_required=True)] = 0
    freed: Annotated[int, Field("freedBytes", is_required=True)] = 0
    """By pruning at this start."""


class TransferStep(StrEnum):
    """What a fetch is doing."""

    LISTING = "Listing"
    WAITING = "Waiting"
    DOWNLOADING = "Downloading"
    VERIFYING = "Verifying"


@dataclass(frozen=True)
class Transfer(Document):
    """Progress of one artifact's fetch. Bytes; None while unknown."""

    artifact: str
    step: TransferStep
    bytes_done: int = 0
    bytes_total: int | None = None
    bytes_per_second: Annotated[float | None, Field(written=round)] = None

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
        """As JSON, with the derived values that are known."""
        derived = {"percent": self.percent, "etaSeconds": self.eta_seconds}
        return super().to_document() | {name: value for name, value in derived.items() if value is not None}

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_document(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Transfer:
        """The inverse of to_json. Refused, a ValueError, where the text is invalid."""
        return cls.from_document(parse(text), "transfer")


@dataclass(frozen=True)
class Measured(Document):
    """Values of this start; None while unknown."""

    vllm_version: str | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None
    model_load_seconds: float | None = None
    model_memory_gib: Annotated[float | None, Field("modelMemoryGiB")] = None
    kv_cache_memory_gib: Annotated[float | None, Field("kvCacheMemoryGiB")] = None
    engine_init_seconds: float | None = None
    start_seconds: float | None = None
    start_cache: str | None = None
    """New, Reused or Unused."""
    start_cache_message: Annotated[str | None, Field(longest=TERMINATION_LIMIT, is_prose=True)] = None
    """Why it is unused, and what to do."""


MAX_NODES = 64
"""Pods of a group."""
_NAME = Field(longest=253)


@dataclass(frozen=True)
class Cause(Document):
    """Why the pods of a group ended vLLM: the failure of the member on which it happened."""

    rank: Annotated[int, Field(most=MAX_NODES - 1)]
    pod: Annotated[str, _NAME]
    node: Annotated[str, _NAME]
    failure: Failure
    lost_requests: int = 0
    """Requests in flight when it was noticed."""


@dataclass(frozen=True)
class MemberState(Document):
    """One pod of a group, as its leader knows it."""

    rank: Annotated[int, Field(most=MAX_NODES - 1)]
    step: str
    """A word of group.protocol.Step; a later version may have more."""
    pod: Annotated[str, _NAME] = ""
    node: Annotated[str, _NAME] = ""
    progress: Annotated[str, Field(longest=MAX_TEXT, is_prose=True)] = ""
    silent_seconds: Annotated[float, Field(written=lambda seconds: round(seconds, 1))] = 0.0
    """Since it was last heard of."""


@dataclass(frozen=True)
class GroupState(Document):
    """A replica over several pods, as its leader knows it."""

    size: Annotated[int, Field(least=2, most=MAX_NODES)]
    incarnation: int
    members: Annotated[tuple[MemberState, ...], Field(items=MAX_NODES)] = ()
    """By rank; one that was never heard of is left out."""
    cause: Annotated[Cause | None, Field(forgives=Refused)] = None
    """Of the last failure; None once the group has become ready again."""
    restarts: int = 0
    """Within the last hour."""
    waits_seconds: Annotated[float | None, Field(written=round)] = None
    """Of the back-off that are left."""
    is_exhausted: bool = False
    """Its restarts are used up: it starts no more until its pods are replaced."""


@dataclass(frozen=True)
class State(Document):
    """The body of GET /state."""

    phase: Annotated[Phase, Field(forgives=UnknownWord)]
    started: Annotated[bool, Field(is_required=True)] = False
    ready: Annotated[bool, Field(is_required=True)] = False
    progress: Annotated[str, Field(longest=MAX_TEXT, is_prose=True, is_required=True)] = ""
    phase_seconds: Annotated[float, Field(is_required=True, written=lambda seconds: round(seconds, 1))] = 0.0
    model_names: Annotated[tuple[str, ...], Field(items=2 * MAX_ADAPTERS, longest=MAX_TEXT)] = ()
    measured: Annotated[Measured, Field(is_required=True)] = field(default_factory=Measured)
    start_budget_seconds: float | None = None
    """Start budget without fetching; None once started."""
    slow: bool = False
    """The start exceeds its budget and makes progress. Not a failure."""
    usual_start_seconds: float | None = None
    """Usual start time without fetching; None where unknown, and once started."""
    transfer: Annotated[Transfer | None, Field(forgives=UnknownWord)] = None
    cache: CacheRoom | None = None
    adapters: Annotated[tuple[AdapterState, ...], Field(items=MAX_ADAPTERS)] = ()
    adapters_hash: str = ""
    """Digest of the list that `adapters` belongs to; empty without a list."""
    hung: Annotated[bool, Field(unwritten=(False,))] = False
    """Requests wait for an engine without progress: not ready, and restarted if that persists."""
    unprobed: Annotated[bool, Field(unwritten=(False,))] = False
    """Ready, and no probe of the kubelet has arrived for three of its periods."""
    failure: Annotated[Failure | None, Field(forgives=Refused)] = None
    group: Annotated[GroupState | None, Field(forgives=Refused)] = None
    """Told by the leader of a group."""

    def to_json(self) -> str:
        """One line of JSON."""
        document = {"version": VERSION} | self.to_document()
        if self.start_budget_seconds is None:
            del document["slow"]
        if not self.adapters_hash:
            del document["adapters"], document["adaptersHash"]
        return to_line(document)

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
        state = cls.from_document(_versioned(text, MAX_BYTES))
        # A later runtime may have more phases; `started` is independent of them.
        return state if state.phase else replace(state, phase=Phase.SERVING if state.started else Phase.LOADING)


def _versioned(text: str, max_bytes: int = 4 * TERMINATION_LIMIT) -> Reader:
    """The object in a text. Refused where it is invalid or of another version."""
    given = Reader(parse(text, max_bytes))
    if given.integer("version") != VERSION:
        raise OtherVersion("its version is another")
    return given
