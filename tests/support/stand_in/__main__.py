"""python -m tests.support.stand_in <vLLM's flags>: load, serve, end as a vLLM would."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.stand_in import failures, ranks, starting
from tests.support.stand_in.adapters import Adapters
from tests.support.stand_in.app import Server
from tests.support.stand_in.behaviour import Behaviour
from tests.support.stand_in.command_line import Arguments, parse
from tests.support.stand_in.engine import Engine
from tests.support.stand_in.http_server import HttpServer
from tests.support.stand_in.lines import api_server

KEEP_ALIVE = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"
WATCHDOG_SECONDS = 5.0
"""How often vLLM looks whether its engine is dead, where no request tells it."""


def main(args: Sequence[str]) -> int:
    """The exit code."""
    behaviour = Behaviour.from_env(os.environ)
    arguments = parse(args, os.environ)
    engine = _engine_process(behaviour.eats_mib)
    try:
        return _live(behaviour, arguments, engine)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine, signal.SIGKILL)


def _live(behaviour: Behaviour, arguments: Arguments, engine: int) -> int:
    _mind_terms(behaviour)
    starting.run(behaviour, arguments, engine)
    if _is_gone(engine):
        return failures.end("engine-killed", engine)
    if failing := behaviour.fails or failures.of_arguments(arguments):
        return failures.end(failing, engine)
    if behaviour.exit_loading is not None:
        return behaviour.exit_loading
    others = ranks.met(arguments.ranks)
    if arguments.ranks.is_headless:
        ranks.stay()
    asyncio.run(_serve(behaviour, arguments, engine, others))
    return 0


def _engine_process(eats_mib: int) -> int:
    """A process that does nothing but live, so that it can be killed as vLLM's can. Its pid."""
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Path("/proc/self/comm").write_text("VLLM::EngineCore")
    _eaten = [os.urandom(1 << 10) * (1 << 10) for _ in range(eats_mib)]
    while True:
        signal.pause()


def _is_gone(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _mind_terms(behaviour: Behaviour) -> None:
    """vLLM swallows a SIGTERM that comes while its engine starts."""
    left = behaviour.swallowed_terms

    def on_term(number: int, frame: object) -> None:
        nonlocal left
        if left == 0 and not behaviour.deaf:
            sys.exit(0)
        left -= 1
        os.write(1, b"swallowed a SIGTERM\n")

    signal.signal(signal.SIGTERM, on_term)


async def _serve(behaviour: Behaviour, arguments: Arguments, process: int, others: Sequence[socket.socket]) -> None:
    """From the open port to SIGTERM, or to the engine's death."""
    engine = Engine(behaviour, arguments.limits, process)
    engine.watch()
    ranks.watch(engine, others)
    server = Server(engine, arguments, Adapters(behaviour.refused_adapter))
    http = HttpServer(_wrapped(server, arguments), float(os.environ.get(KEEP_ALIVE, 5)), arguments.unlogged)
    terminated = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, (lambda: None) if behaviour.deaf else terminated.set)
    loop.add_signal_handler(signal.SIGUSR1, engine.release)
    await http.listen(arguments.host or "", arguments.port)
    print("INFO:     Application startup complete.", flush=True)
    ends: list[asyncio.Future[Any]] = [asyncio.ensure_future(event.wait()) for event in (terminated, server.broken)]
    ends.append(asyncio.ensure_future(_watchdog(engine)))
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if terminated.is_set():
        await _stop_engine(engine, arguments, behaviour)
    print("INFO:     Shutting down", flush=True)
    await http.close()
    for line in ("Waiting for application shutdown.", "Application shutdown complete."):
        print(f"INFO:     {line}", flush=True)
    for end in ends:
        end.cancel()


def _wrapped(app: Any, arguments: Arguments) -> Any:
    """With the command line's middleware around it, the last one outermost."""
    for path in arguments.middleware:
        module, _, name = path.rpartition(".")
        app = getattr(importlib.import_module(module), name)(app)
    return app


async def _watchdog(engine: Engine) -> None:
    """The engine's death that no request brought to light."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await engine.dead.wait()
    await asyncio.sleep(WATCHDOG_SECONDS - (loop.time() - began) % WATCHDOG_SECONDS)


async def _stop_engine(engine: Engine, arguments: Arguments, behaviour: Behaviour) -> None:
    """--shutdown-timeout 0 aborts; more waits for what runs, and aborts the rest."""
    pid, seconds = os.getpid(), arguments.shutdown_timeout
    mode = "drain" if seconds else "abort"
    text = f"[shutdown] API server: stopping engine client mode={mode} timeout={seconds}s"
    print(api_server(pid, "INFO", "launcher.py:254", "[shutdown] API server: shutdown triggered"))
    print(api_server(pid, "INFO", "launcher.py:270", text), flush=True)
    engine.refuse()
    if seconds:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(engine.idle(), seconds)
    engine.abort()
    await asyncio.sleep(behaviour.stop_seconds)
    print(api_server(pid, "INFO", "launcher.py:279", "[shutdown] API server: engine client stopped"), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
