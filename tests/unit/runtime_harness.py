"""A real supervisor process around the stand-in for vLLM, for the tests of its behaviour."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from llmservice_runtime.contract import DRAIN_MIDDLEWARE, Failure, State
from llmservice_runtime.health.start_watch import StallLimits
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.dependencies import Dependencies, Timing
from llmservice_runtime.supervisor.loopback import Response, http_request

from tests.support.ports import free_port
from tests.support.stand_in.behaviour import VARIABLE, Behaviour

MARK = "LLMSERVICE_TESTS_SERVER"
"""An environment variable that all processes of one supervisor have."""
# Streams take long enough to be met under way.
WELL = Behaviour(tokens_per_second=20)
ENGINE = (sys.executable, "-u", "-m", "tests.support.stand_in")
QUICK = Timing(
    poll_seconds=0.02,
    watch_seconds=0.1,
    in_flight_seconds=0.01,
    linger_seconds=0.3,
    lull_seconds=0.1,
    adapters_seconds=0.05,
    adapter_retry_seconds=0.1,
    stop_loading_seconds=0.5,
    stop_serving_seconds=1.0,
    preflight_seconds=20,
    fetch_wait_seconds=20,
    fetch_retry_seconds=0.05,
)


@dataclass
class Server:
    """A running supervisor."""

    process: asyncio.subprocess.Process
    options: ServeOptions
    port: int
    mark: str
    log: list[str] = field(default_factory=list)
    fetch_container: FetchContainer | None = None
    """Beside it, where something may be fetched."""

    async def probe(self, path: str) -> int:
        """The status of a path of the state's port; 0 when nobody answers."""
        try:
            return (await http_request(self.options.state_port, path, timeout=2)).status
        except OSError:
            return 0

    async def state(self) -> State | None:
        """GET /state, or None when nobody answers."""
        try:
            answer = await http_request(self.options.state_port, "/state", timeout=2)
        except OSError:
            return None
        return State.from_json(answer.body)

    async def until(self, condition: Callable[[State], bool], seconds: float = 10) -> State:
        """The first state that fulfils a condition."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state = await self.state()
            if state is not None and condition(state):
                return state
            await asyncio.sleep(0.02)
        raise AssertionError(f"last state: {await self.state()}; log:\n" + "".join(self.log))

    async def ready(self) -> State:
        """Wait for readiness."""
        return await self.until(lambda state: state.ready)

    async def complete(self, **fields: object) -> Response:
        """POST /v1/completions."""
        body = json.dumps({"model": "m", "prompt": "a", "max_tokens": 4, **fields})
        return await http_request(self.port, "/v1/completions", method="POST", body=body, timeout=20)

    def hold(self, prompt: str) -> asyncio.Task[Response]:
        """A request that waits for its answer."""
        return asyncio.create_task(self.complete(prompt=prompt))

    def engine(self) -> int:
        """The pid of vLLM's API server."""
        return children(self.process.pid)[0]

    async def passed(self, seconds: float) -> None:
        """Where the passing of time is the very matter."""
        await asyncio.sleep(seconds)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """To the supervisor."""
        self.process.send_signal(number)

    async def ended(self, seconds: float = 10) -> int:
        """Its exit code."""
        return await asyncio.wait_for(self.process.wait(), seconds)

    def failure(self) -> Failure | None:
        """What the termination log holds."""
        path = Path(self.options.termination_log)
        return Failure.from_json(path.read_text()) if path.exists() else None


@dataclass
class FetchContainer:
    """A running `llmservice_fetch serve`, which a kubelet would start again."""

    setup: Mapping[str, object]
    environment: Mapping[str, str]
    log: list[str]
    process: asyncio.subprocess.Process | None = None
    reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Anew, after its end."""
        self.process, self.reading = await _started("serve_fetches", self.setup, self.environment, self.log)

    async def kill(self) -> None:
        """As the kernel does for memory: all of its processes."""
        assert self.process is not None
        for pid in (*children(self.process.pid), self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self.ended()

    async def ended(self) -> None:
        """Once it has; nothing where it was never started."""
        if self.process is not None and self.reading is not None:
            await self.process.wait()
            await self.reading


@asynccontextmanager
async def supervised(
    folder: Path,
    behaviour: Behaviour = WELL,
    *,
    timing: Timing = QUICK,
    stall_limits: StallLimits | None = None,
    cgroup: Path = Path("/no/such/cgroup"),
    preflight: Sequence[str] = ("true",),
    command: Sequence[str] = ENGINE,
    flags: Sequence[str] = (),
    middleware: bool = True,
    fetch: Sequence[str] = ("false",),
    has_fetch_container: bool = True,
    wanted: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    late: Path | None = None,
    **changed: object,
) -> AsyncIterator[Server]:
    """Start a supervisor; whatever happens, nothing of it is left."""
    options = ServeOptions(
        **{  # type: ignore[arg-type]
            "accelerator": "cpu",
            "state_port": free_port(),
            "drain_file": str(folder / "board"),
            "termination_log": str(folder / "termination-log"),
            "propagation_seconds": 0.2,
            "drain_seconds": 5,
            "start_seconds": 20,
            "fetch": tuple(wanted),
            "fetch_socket": str(folder / "socket"),
            **changed,
        }
    )
    port = free_port()
    setup = {
        "timing": asdict(timing),
        "patience": asdict(stall_limits or StallLimits()),
        "cgroup": str(cgroup),
        "preflight": preflight,
        "command": command,
        "options": options.to_args(),
        "flags": (*_flags(port, middleware), *flags),
        "late": str(late or ""),
    }
    mark = secrets.token_hex(8)
    environment = {**os.environ, **(variables or {}), VARIABLE: behaviour.to_env(), MARK: mark}
    log: list[str] = []
    container = None
    if options.fetch or options.adapters_file:
        serving = {
            "socket": options.fetch_socket,
            "fetch": options.fetch,
            "adapters_file": options.adapters_file,
            "command": fetch,
        }
        container = FetchContainer(serving, environment, log)
        if has_fetch_container:
            await container.start()
    process, reading = await _started("serve", setup, environment, log)
    server = Server(process, options, port, mark, log, container)
    try:
        yield server
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        # In a pod the end of process 1 is the end of all; here its children outlive it, and hold the log open.
        for pid in marked(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await reading
        if container is not None:
            await container.ended()


async def _started(
    command: str, setup: Mapping[str, object], environment: Mapping[str, str], log: list[str]
) -> tuple[asyncio.subprocess.Process, asyncio.Task[None]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        command,
        json.dumps(setup),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
    )
    assert process.stdout is not None
    return process, asyncio.create_task(_collect(process.stdout, log))


def marked(mark: str) -> tuple[int, ...]:
    """Processes that a supervisor of these tests started, and what these started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        # It ended meanwhile, or is somebody else's.
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return tuple(found)


def children(pid: int) -> tuple[int, ...]:
    """Of a process; none where it is gone."""
    with suppress(FileNotFoundError):
        return tuple(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return ()


def _flags(port: int, middleware: bool) -> tuple[str, ...]:
    counting = ("--middleware", DRAIN_MIDDLEWARE) if middleware else ()
    return ("--model", "m", "--port", str(port), *counting)


async def _collect(stream: asyncio.StreamReader, log: list[str]) -> None:
    while line := await stream.readline():
        log.append(line.decode())


def answer_late(path: str) -> None:
    """Whoever opens this file waits while PATH.stalled is there: a mount that does not answer."""
    real, mark = os.open, Path(f"{path}.stalled")

    def opened(file: Any, *arguments: Any, **named: Any) -> int:
        while str(file) == path and mark.exists():
            time.sleep(0.01)
        return real(file, *arguments, **named)

    os.open = opened  # type: ignore[assignment]


def serve(setup: Mapping[str, Any]) -> int:
    """The supervisor's process."""
    from llmservice_runtime.options import parse_options
    from llmservice_runtime.supervisor.supervisor import run

    if setup["late"]:
        answer_late(setup["late"])
    around = Dependencies(
        command=setup["command"],
        preflight=setup["preflight"],
        timing=Timing(**setup["timing"]),
        stall_limits=StallLimits(**setup["patience"]),
        cgroup=Path(setup["cgroup"]),
    )
    return run(parse_options(setup["options"]), setup["flags"], around)


def serve_fetches(setup: Mapping[str, Any]) -> int:
    """The fetch container's process."""
    from llmservice_fetch.serve import Allowed
    from llmservice_fetch.serve import serve as serve_socket

    adapters = None if setup["adapters_file"] is None else Path(setup["adapters_file"])
    allowed = Allowed(tuple(setup["fetch"]), adapters)
    return serve_socket(Path(setup["socket"]), allowed, setup["command"], os.environ, lambda: None)


if __name__ == "__main__":
    sys.exit({"serve": serve, "serve_fetches": serve_fetches}[sys.argv[1]](json.loads(sys.argv[2])))
