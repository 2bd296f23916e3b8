"""The supervisor's part beside a server: what it reads in the log of a start, and what it does through the board."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from llmservice_runtime import shared_counters
from llmservice_runtime.contract import DRAIN_FILE_ENV, DRAIN_MIDDLEWARE, Measured
from llmservice_runtime.health.hang import MOVING
from llmservice_runtime.supervisor import drain
from llmservice_runtime.supervisor.log_reader import measure, parse_line, progress
from llmservice_vllm.metrics import totals

from tests.support.answers import observed
from tests.support.cluster import eventually
from tests.support.contract_cases import SERVING, ending, streaming, text
from tests.support.host import pause
from tests.support.vllm_process import STAND_IN, Kind, Server, started

Observation = dict[str, Any]
_NUMBER = re.compile(r"\d+")


def start(server: Server) -> Observation:
    """What the log of a start is read for: which figures it has, and the steps that it tells of, in their order."""
    measured, steps = Measured(), list[str]()
    for raw in server.log.splitlines():
        line = parse_line(raw).text
        measured = measure(measured, line)
        step = _NUMBER.sub("N", progress(line) or "")
        if step and step not in steps:
            steps.append(step)
    return {"figures": sorted(measured.to_document()), "steps": steps}


def drain_by_the_board(kind: Kind, folder: Path, model: str) -> Observation:
    """Each level in its turn, while a stream is under way; then SIGTERM, with nothing left to lose."""
    path = str(folder / f"{kind.name}-board")
    slots = shared_counters.create(path).slots
    with with_middleware(kind, folder, model, path) as server:
        seen: Observation = {"attached": slots[shared_counters.ATTACHED], "open": _asked(server)}
        with server.client() as old, server.client() as older, streaming(server) as rest:
            for client in (old, older):
                assert client.get("/v1/models").status_code == 200
            eventually("only the stream is in flight", lambda: slots[shared_counters.IN_FLIGHT] == 1, 10)
            slots[shared_counters.LEVEL] = shared_counters.CLOSING
            seen["closing"] = _asked(server)
            seen["arrived"] = slots[shared_counters.ARRIVED]
            drain.record_peers(path, drain.established(server.port))
            slots[shared_counters.LEVEL] = shared_counters.REFUSING
            seen["refusing newcomers"] = _asked(server)
            seen["refusing those who were there"] = _answer(text().send(old))
            slots[shared_counters.LEVEL] = shared_counters.STOPPING
            seen["stopping"] = _asked(server)
            seen["stopping those who were there"] = _answer(text().send(older))
            seen["health"] = server.health()
            seen["stream"] = ending(rest.result(60))
        eventually("nothing in flight", lambda: not slots[shared_counters.IN_FLIGHT], 10)
        server.process.send_signal(signal.SIGTERM)
        return {**seen, "refused": slots[shared_counters.REFUSED], "code": server.ended()}


def engine_hangs(kind: Kind, folder: Path, model: str) -> Observation:
    """An engine that stands still under a request: awaited, no counter moves, and /health sees nothing of it."""
    path = str(folder / f"{kind.name}-hung-board")
    slots = shared_counters.create(path).slots
    with with_middleware(kind, folder, model, path) as server, ThreadPoolExecutor(1) as beside:
        # The stand-in's engine is no process that answers come from; it is told to hang.
        prompt = "@hang" if kind is STAND_IN else "hello"
        if kind is not STAND_IN:
            os.kill(server.engine(), signal.SIGSTOP)
        with server.client() as client:
            asked = beside.submit(text(prompt=prompt, max_tokens=7).send, client)
            eventually("it is awaited", lambda: slots[shared_counters.AWAITING] == 1, 10)
            before = _counters(server)
            pause(1.5)
            seen = {
                "moves": _counters(server) != before,
                "health": server.health(),
                "in flight": slots[shared_counters.IN_FLIGHT],
            }
            server.process.kill()
            asked.exception(30)
        return seen


@contextmanager
def with_middleware(kind: Kind, folder: Path, model: str, path: str) -> Iterator[Server]:
    """As the supervisor starts it."""
    flags = (*SERVING, "--middleware", DRAIN_MIDDLEWARE)
    with started(kind, folder, model, *flags, extra={DRAIN_FILE_ENV: path}) as server:
        server.until_healthy()
        with server.client() as client:
            assert text(max_tokens=1).send(client).status_code == 200
        yield server


def _asked(server: Server) -> Observation:
    """On a connection of its own."""
    with server.client() as client:
        return _answer(text().send(client))


def _answer(answer: httpx.Response) -> Observation:
    names = ("connection", "retry-after")
    headers = {name: answer.headers[name] for name in names if name in answer.headers}
    return {"status": answer.status_code, "headers": headers, "body": observed(answer)["body"]}


def _counters(server: Server) -> Mapping[str, float]:
    with server.client() as client:
        return totals(client.get("/metrics").text, MOVING)


ONE_SERVER: Mapping[str, Callable[[Server], Observation]] = {"start": start}
LIVES: Mapping[str, Callable[[Kind, Path, str], Observation]] = {
    "drain by the board": drain_by_the_board,
    "engine hangs": engine_hangs,
}
