"""A real supervisor process around the stand-in for vLLM, for the tests of its behaviour.

Supervisors and fetch containers are forked from a server that has imported them: an import costs more than most tests.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from llmservice_fetch.serve import Allowed
from llmservice_fetch.serve import serve as serve_fetches
from llmservice_runtime.contract import DRAIN_MIDDLEWARE, Failure, State
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor.addresses import of_pod
from llmservice_runtime.supervisor.client import Response, http_request
from llmservice_runtime.supervisor.dependencies import Dependencies, Timing
from llmservice_runtime.supervisor.supervisor import run
from llmservice_runtime.supervisor.vllm_process import command
from llmservice_vllm import metrics

from tests.support.no_ipv6 import without_ipv6
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.stand_in.behaviour import VARIABLE, Behaviour
from tests.support.stand_in.fates import HELD

MARK = "LLMSERVICE_TESTS_SERVER"
"""An environment variable that all processes of one supervisor have."""
# Streams take long enough to be met under way.
WELL = Behaviour(tokens_per_second=20)
NO_CGROUP = Path("/no/such/cgroup")
ENGINE = command("tests.support.stand_in")
NEVER = 10 * PATIENCE
"""Seconds of a limit that is over only by a clock that was put ahead."""
QUICK = Timing(
    poll_seconds=0.02,
    health_seconds=0.02,
    watch_seconds=0.1,
    in_flight_seconds=0.01,
    linger_seconds=0.3,
    lull_seconds=0.1,
    adapters_seconds=0.05,
    adapter_retry_seconds=0.1,
    stop_loading_seconds=0.5,
    stop_serving_seconds=1.0,
    preflight_seconds=NEVER,
    fetch_wait_seconds=NEVER,
    fetch_retry_seconds=0.05,
)


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])


class Process:
    """A forked process with an environment of its own, whose output is collected in `log`."""

    def __init__(
        self, work: Callable[..., int], arguments: Sequence[object], environment: Mapping[str, str], log: list[str]
    ) -> None:
        # A connection is sent along with the request to fork. A plain descriptor would have to be fetched by the
        # process, and one that is killed before it does so leaves the pipe open here.
        reader, writer = FORKS.Pipe(duplex=False)
        self._process = FORKS.Process(target=_become, args=(writer, environment, work, arguments))
        self._process.start()
        writer.close()
        self.reading = asyncio.create_task(_collect(os.dup(reader.fileno()), log))
        reader.close()
        self.pid = self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative after a signal."""
        return self._process.exitcode

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        while self.returncode is None:  # noqa: ASYNC110 - awaits a process that is no child of this one
            await asyncio.sleep(0.01)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """No effect once it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def _become(
    output: Connection, environment: Mapping[str, str], work: Callable[..., int], arguments: Sequence[object]
) -> None:
    """The forked process."""
    for standard in (1, 2):
        os.dup2(output.fileno(), standard)
    output.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.exit(work(*arguments))


@dataclass(frozen=True)
class Clock:
    """A supervisor's clock, which a test puts ahead where a limit decides: on a busy machine, no limit of real seconds
    is both over soon and long enough for what has to come before it."""

    file: Path

    @property
    def ahead(self) -> float:
        """Seconds that it shows more than this process's."""
        return float(self.file.read_text()) if self.file.exists() else 0

    def put_ahead(self, seconds: float) -> None:
        """Of all that it is ahead from now on. Its reader sees the old or the new one."""
        (written := self.file.with_suffix(".written")).write_text(str(seconds))
        written.rename(self.file)

    def __call__(self) -> float:
        """Seconds."""
        return time.monotonic() + self.ahead


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose waits are over by such a clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._ahead = clock, 0.0
        super().__init__()
        self._look()

    def time(self) -> float:
        return super().time() + self._ahead

    def _look(self) -> None:
        self._ahead = self._clock.ahead
        self.call_later(0.02, self._look)


class _Loops(asyncio.DefaultEventLoopPolicy):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _Loop(self._clock)


@dataclass
class Server:
    """A running supervisor."""

    process: Process
    options: ServeOptions
    port: int
    mark: str
    log: list[str]
    clock: Clock
    fetch_container: FetchContainer

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

    async def until(self, condition: Callable[[State], bool], jump: float = 0) -> State:
        """The first state that fulfils a condition. Its clock is put ahead by `jump` seconds after every other one."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            state = await self.state()
            if state is not None and condition(state):
                return state
            self.jump(jump)
            await asyncio.sleep(0.02)
        raise AssertionError(f"last state: {await self.state()}; log:\n" + "".join(self.log))

    async def ready(self) -> State:
        """Wait for readiness."""
        return await self.until(lambda state: state.ready)

    async def logged(self, words: str, times: int = 1) -> None:
        """Wait until its log has these words so often."""
        async with asyncio.timeout(PATIENCE):
            while "".join(self.log).count(words) < times:  # noqa: ASYNC110 - the lines come from a process
                await asyncio.sleep(0.02)

    async def complete(self, **fields: object) -> Response:
        """POST /v1/completions."""
        body = json.dumps({"model": "m", "prompt": "a", "max_tokens": 4, **fields})
        return await http_request(self.port, "/v1/completions", method="POST", body=body, timeout=PATIENCE)

    def hold(self, prompt: str) -> asyncio.Task[Response]:
        """A request that waits for its answer."""
        return asyncio.create_task(self.complete(prompt=prompt))

    async def stream(self) -> asyncio.Task[Response]:
        """A stream of 20 tokens that has arrived; all but its first one come after `release`."""
        task = asyncio.create_task(self.complete(prompt=HELD, stream=True, max_tokens=20))
        async with asyncio.timeout(PATIENCE):
            while not await self.measured(metrics.RUNNING):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.02)
        return task

    async def measured(self, name: str) -> float:
        """A series of vLLM's metrics."""
        page = (await http_request(self.port, "/metrics", timeout=PATIENCE)).body
        return metrics.totals(page, (name,))[name]

    def release(self) -> None:
        """What waits in the stand-in: held streams, or its start where that stalls."""
        os.kill(self.engine(), signal.SIGUSR1)

    def engine(self) -> int:
        """The pid of vLLM's API server."""
        return children(self.process.pid)[0]

    def peak_mib(self) -> int:
        """The supervisor's largest resident memory so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) >> 10

    async def passed(self, seconds: float) -> None:
        """Where the passing of time is the very matter."""
        await asyncio.sleep(seconds)

    def jump(self, seconds: float) -> None:
        """Let its clock show so much more."""
        if seconds:
            self.clock.put_ahead(self.clock.ahead + seconds)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """To the supervisor."""
        self.process.send_signal(number)

    async def ended(self, jump: float = 0) -> int:
        """Its exit code. Its clock is put ahead by `jump` seconds again and again until then."""
        async with asyncio.timeout(PATIENCE):
            while self.process.returncode is None:
                self.jump(jump)
                await asyncio.sleep(0.02)
        return await self.process.wait()

    def failure(self) -> Failure | None:
        """What the termination log holds."""
        path = Path(self.options.termination_log)
        return Failure.from_json(path.read_text()) if path.exists() else None

    async def failed(self, exit_code: int = 1, jump: float = 0) -> Failure:
        """The termination message of a server that ends with this exit code."""
        assert await self.ended(jump) == exit_code, "".join(self.log)
        failure = self.failure()
        assert failure is not None, "".join(self.log)
        return failure


@dataclass
class FetchContainer:
    """A running `llmservice_fetch serve`, which a kubelet would start again."""

    options: ServeOptions
    command: Sequence[str]
    environment: Mapping[str, str]
    log: list[str]
    process: Process | None = None

    def start(self) -> None:
        """Anew, after its end."""
        adapters = None if self.options.adapters_file is None else Path(self.options.adapters_file)
        allowed = Allowed(self.options.fetch, adapters)
        arguments = (Path(self.options.fetch_socket), allowed, self.command, self.environment, _nothing)
        self.process = Process(serve_fetches, arguments, self.environment, self.log)

    async def kill(self) -> None:
        """As the kernel does for memory: all of its processes."""
        assert self.process is not None
        for pid in (*children(self.process.pid), self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self.process.wait()


def _nothing() -> None:
    """For uses of a cache that need no renewal."""


@asynccontextmanager
async def supervised(
    folder: Path,
    behaviour: Behaviour = WELL,
    *,
    timing: Timing = QUICK,
    cgroup: Path = NO_CGROUP,
    preflight: Sequence[str] = ("true",),
    engine: Sequence[str] = ENGINE,
    flags: Sequence[str] = (),
    middleware: bool = True,
    fetch: Sequence[str] = ("false",),
    wanted: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    late: Path | None = None,
    has_ipv6: bool = True,
    pod_addresses: Callable[[], tuple[str, ...]] = of_pod,
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
            "drain_seconds": NEVER,
            "start_seconds": NEVER,
            "fetch": tuple(wanted),
            "fetch_socket": str(folder / "socket"),
            "start_cache": "",
            **changed,
        }
    )
    port, mark, log = free_port(), secrets.token_hex(8), list[str]()
    environment = {**os.environ, **(variables or {}), VARIABLE: behaviour.to_env(), MARK: mark}
    container, clock = FetchContainer(options, fetch, environment, log), Clock(folder / "clock-ahead")
    if options.fetch or options.adapters_file:
        container.start()
    dependencies = Dependencies(
        command=engine,
        headless=engine,
        preflight=preflight,
        environment=environment,
        clock=clock,
        timing=timing,
        cgroup=cgroup,
        pod_addresses=pod_addresses,
    )
    arguments = (options, (*_flags(port, middleware), *flags), dependencies, late, has_ipv6)
    process = Process(_supervise, arguments, environment, log)
    server = Server(process, options, port, mark, log, clock, container)
    try:
        yield server
    finally:
        async with asyncio.timeout(PATIENCE):
            process.send_signal(signal.SIGKILL)
            await process.wait()
            if container.process is not None:
                container.process.send_signal(signal.SIGKILL)
            # In a pod the end of process 1 is the end of all; here its children outlive it, and hold the log open. One
            # that it had just forked has the mark only once it runs its program.
            reading = asyncio.gather(*(each.reading for each in (process, container.process) if each is not None))
            while not reading.done():
                for pid in marked(mark):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                await asyncio.wait([reading], timeout=0.1)
            reading.result()


@asynccontextmanager
async def watched(folder: Path, *, cgroup: Path = NO_CGROUP, **changed: object) -> AsyncIterator[Server]:
    """A server that serves, at which the supervisor looks each time that its clock is put ahead by NEVER seconds."""
    timing = replace(QUICK, watch_seconds=NEVER)
    limits = {"hang_unready_seconds": NEVER, "hang_restart_seconds": 3 * NEVER}
    async with supervised(folder, cgroup=cgroup, timing=timing, **limits, **changed) as server:  # type: ignore[arg-type]
        await server.ready()
        yield server


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


async def _collect(descriptor: int, log: list[str]) -> None:
    stream = asyncio.StreamReader()
    with os.fdopen(descriptor, "rb") as pipe:
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
        while line := await stream.readline():
            log.append(line.decode())


def _supervise(
    options: ServeOptions, flags: Sequence[str], dependencies: Dependencies, late: Path | None, has_ipv6: bool
) -> int:
    if not has_ipv6:
        without_ipv6()
    if late:
        _open_late(str(late))
    if isinstance(dependencies.clock, Clock):
        asyncio.set_event_loop_policy(_Loops(dependencies.clock))
    return run(options, flags, dependencies)


def _open_late(path: str) -> None:
    """Opening this file blocks while PATH.stalled is there: a mount that does not answer."""
    real, mark = os.open, Path(f"{path}.stalled")

    def opened(file: Any, *arguments: Any, **named: Any) -> int:
        while str(file) == path and mark.exists():
            time.sleep(0.01)
        return real(file, *arguments, **named)

    os.open = opened  # type: ignore[assignment]
