"""One server as in a pod: supervisor, middleware in vLLM and environment are the product's; no Kubernetes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
from llmservice_cli.load.server import client_of
from llmservice_operator.manifests.containers import environment
from llmservice_operator.manifests.server import serve_options
from llmservice_operator.manifests.settings import Settings
from llmservice_runtime import access, contract
from llmservice_runtime.contract import Failure, State
from llmservice_runtime.failures.failures import End, classify
from llmservice_vllm.metrics import totals
from llmservice_vllm.modules import ENTRY

from benchmarks.gpu.served import engine_log, run
from benchmarks.gpu.served.cases import Case, Machine, arguments, model_folder, service
from benchmarks.gpu.served.engine_log import Timed, Value

LAST_LINES = 25
"""Of a log in a result."""
POLL_SECONDS = 0.2
_PORTS = range(12_000, 15_000)
_SETTINGS = Settings(default_cpu_image="-", default_gpu_image="-")
_ENGINE = "VLLM::EngineCor"
"""The engine's process, as the kernel shortens its name."""


class StepFailed(Exception):
    """A step has no figures; `log` are the last lines of the process that it is about."""

    def __init__(self, why: str, log: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.log = tuple(log)


@dataclass
class Process:
    """A started process whose output goes to a file too, with the second in which each line came."""

    popen: subprocess.Popen[bytes]
    began: float
    lines: list[Timed] = field(default_factory=list)
    _thread: threading.Thread | None = None

    @classmethod
    def start(cls, command: Sequence[str], variables: Mapping[str, str], log: Path) -> Process:
        """In a process group of its own. OSError where it cannot be started."""
        popen = subprocess.Popen(
            command, env=dict(variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        made = cls(popen, time.monotonic())
        made._thread = threading.Thread(target=made._copy, args=(log,), daemon=True)
        made._thread.start()
        return made

    def _copy(self, log: Path) -> None:
        assert self.popen.stdout is not None
        with self.popen.stdout as output, log.open("ab", buffering=0) as copy:
            for raw in output:
                self.lines.append((time.monotonic() - self.began, raw.decode(errors="replace").rstrip()))
                copy.write(raw)

    @property
    def texts(self) -> list[str]:
        """The lines so far."""
        return [text for _, text in list(self.lines)]

    @property
    def last_lines(self) -> list[str]:
        return [text for text in self.texts if text.strip()][-LAST_LINES:]

    async def ended(self, seconds: float) -> int:
        """Its exit code, negative for a signal; StepFailed where it does not end in time."""
        ends = time.monotonic() + seconds
        while self.popen.poll() is None:
            if time.monotonic() > ends:
                raise StepFailed(f"the process did not end within {seconds:g} s", self.last_lines)
            await asyncio.sleep(POLL_SECONDS)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 5)
        return int(self.popen.returncode)

    def kill(self) -> None:
        """With everything that it started: the next engine must not profile beside this one."""
        run.end_tree(self.popen)
        if self._thread is not None:
            self._thread.join(5)


@dataclass(frozen=True)
class Place:
    """Where servers keep their files: `log` is shared by all of a run, `work` holds models and caches."""

    work: Path
    log: Path
    machine: Machine


@dataclass
class Server:
    """A supervisor with vLLM under it."""

    case: Case
    process: Process
    port: int
    state_port: int
    folder: Path
    http: httpx.AsyncClient

    async def until_ready(self) -> State:
        """Its state once it is ready; StepFailed with the product's own reason where it ends before."""
        while self.process.popen.poll() is None:
            state = await self.state()
            if state is not None and state.ready:
                return state
            await asyncio.sleep(POLL_SECONDS)
        await self.process.ended(10)
        failure = self.failure()
        why = "the supervisor ended" if failure is None else f"{failure.reason}: {failure.message}"
        raise StepFailed(why, self.process.last_lines)

    async def state(self) -> State | None:
        """GET /state; None where nobody answers."""
        with contextlib.suppress(httpx.HTTPError):
            answer = await self.http.get(f"http://127.0.0.1:{self.state_port}{contract.STATE_PATH}", timeout=5)
            return State.from_json(answer.text)
        return None

    async def metrics(self, name: str) -> float:
        """The sum of vLLM's samples of that name; 0 where there is none."""
        text = (await self.http.get("/metrics", timeout=30)).raise_for_status().text
        return totals(text, (name,)).get(name, 0.0)

    async def manage(self, path: str) -> None:
        """POST to an endpoint that is closed to clients."""
        token = access.read_pod_token(str(self.folder / "drain")) or b""
        header = {contract.POD_TOKEN_HEADER: token.decode()}
        (await self.http.post(path, headers=header, timeout=120)).raise_for_status()

    def failure(self) -> Failure | None:
        """The termination message of one that ended."""
        file = self.folder / "termination-log"
        return Failure.from_json(file.read_text("utf-8")) if file.exists() else None

    def figures(self) -> dict[str, Value]:
        """What vLLM's log says."""
        return engine_log.figures(self.process.texts)

    def engine(self) -> int:
        """The pid of the process that computes."""
        return next(pid for pid in run.descendants(self.process.popen.pid) if _name(pid) == _ENGINE)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@asynccontextmanager
async def started(
    place: Place, case: Case, start_cache: str = "", options: Mapping[str, float] = {}
) -> AsyncIterator[Server]:
    """A server that need not be ready; nothing of it is left afterwards. `options` replace some of the supervisor's."""
    folder = place.work / f"pod-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    model, (port, state_port) = model_folder(place.work, case.model, place.machine), free_ports()
    given = replace(
        serve_options(service(case, place.machine, model), _SETTINGS),
        expected_version=place.machine.vllm,
        start_cache=str(place.work / "start-cache" / start_cache) if start_cache else "",
        state_port=state_port,
        drain_file=str(folder / "drain"),
        termination_log=str(folder / "termination-log"),
        **options,  # type: ignore[arg-type]
    )
    flags = arguments(case, place.machine, model, port)
    command = (sys.executable, "-m", "llmservice_runtime", "serve", *given.to_args(), "--", *flags)
    given_variables = variables(place, case, folder, has_start_cache=bool(start_cache))
    process = Process.start(command, given_variables, place.log)
    try:
        async with client_of(f"http://127.0.0.1:{port}", {}, timeout=httpx.Timeout(120, connect=10)) as http:
            yield Server(case, process, port, state_port, folder, http)
    finally:
        process.kill()


def variables(place: Place, case: Case, folder: Path, *, has_start_cache: bool = False) -> dict[str, str]:
    """The environment as in a pod, with folders of this machine for those of the pod's volumes.

    What servers compile lies in one folder of the run, as for containers that are restarted in a pod; with a start
    cache it lies there, but for flashinfer's kernels, which take a minute.
    """
    made, cache = dict(os.environ), place.work / "cache"
    for entry in environment(service(case, place.machine, Path("/model")), _SETTINGS):
        name, value = entry["name"], entry.get("value")
        if not isinstance(value, str) or name == "PYTHONPATH":
            continue
        if value.startswith(contract.CACHE_DIR):
            if not has_start_cache:
                made[name] = str(cache / value.removeprefix(contract.CACHE_DIR).strip("/"))
        else:
            made[name] = str(folder) if value == contract.HOME_DIR else value
    return made | {
        contract.DRAIN_FILE_ENV: str(folder / "drain"),
        "FLASHINFER_WORKSPACE_BASE": str(cache / "flashinfer"),
    }


async def bare(place: Place, case: Case, seconds: float) -> tuple[Failure, Process]:
    """vLLM without supervisor and preflight, where it refuses to start: the failure that its log is classified as."""
    model, (port, _) = model_folder(place.work, case.model, place.machine), free_ports()
    flags = arguments(case, place.machine, model, port)
    folder = place.work / f"bare-{secrets.token_hex(4)}"
    process = Process.start((sys.executable, "-u", "-m", ENTRY, *flags), variables(place, case, folder), place.log)
    try:
        code = await process.ended(seconds)
    finally:
        process.kill()
    end = End(code if code >= 0 else None, -code if code < 0 else None, contract.Phase.LOADING)
    return classify(end, process.texts), process


def free_ports() -> tuple[int, int]:
    """Two that nobody listens on, below those that Linux gives to outgoing connections before a server has bound."""
    free = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            free.append(port)
        if len(free) == 2:
            return free[0], free[1]
    raise StepFailed(f"no two ports from {_PORTS[0]} to {_PORTS[-1]} are free")
