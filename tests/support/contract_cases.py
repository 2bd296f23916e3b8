"""The cases that the stand-in and the real vLLM both go through; tests/e2e/test_stand_in.py says what must come out."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from llmservice_runtime.contract import Phase
from llmservice_runtime.health.hang import MOVING
from llmservice_vllm.metrics import RUNNING, totals

from tests.support.answers import events, observed
from tests.support.cluster import eventually
from tests.support.patience import PATIENCE
from tests.support.vllm_process import FLAGS, NAME, Kind, Server, started

KEY = "contract-key"
QUEUED = 3
SERVING = (*FLAGS, "--max-model-len", "512", "--max-num-seqs", "4", "--max-num-queued-reqs", str(QUEUED))
Observation = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One request."""

    path: str
    body: object = None
    method: str = ""
    key: str = KEY
    content_type: str = "application/json"

    def send(self, client: httpx.Client) -> httpx.Response:
        """As any client would; text is sent as it is."""
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        if self.body is None:
            return client.request(self.method or "GET", self.path, headers=headers)
        headers["content-type"] = self.content_type
        content = self.body if isinstance(self.body, str) else httpx.Request("POST", "http://x", json=self.body).content
        return client.request(self.method or "POST", self.path, headers=headers, content=content)


TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


def text(**fields: object) -> Call:
    """A completion of three tokens, but for what is said otherwise; None takes a field away."""
    asked = {"model": NAME, "prompt": "hello", "max_tokens": 3, "ignore_eos": True, "temperature": 0, **fields}
    return Call(TEXT, {name: value for name, value in asked.items() if value is not None})


def chat(**fields: object) -> Call:
    """The same of a conversation."""
    messages = [{"role": "user", "content": "hello"}]
    asked = {"model": NAME, "messages": messages, "max_tokens": 3, "ignore_eos": True, "temperature": 0, **fields}
    return Call(CHAT, {name: value for name, value in asked.items() if value is not None})


_USAGE = {"include_usage": True}
CALLS: Mapping[str, Call] = {
    "health": Call("/health"),
    "health, wrong method": Call("/health", method="POST"),
    "version": Call("/version", key=""),
    "ping": Call("/ping", key=""),
    "models": Call("/v1/models"),
    "models, no key": Call("/v1/models", key=""),
    "models, wrong key": Call("/v1/models", key="other"),
    "no such path": Call("/nothing"),
    "completion": text(),
    "completion, default length": text(max_tokens=None),
    "completion of tokens": text(prompt=[5, 6, 7]),
    "completion, no model named": text(model=None),
    "completion, no key": Call(TEXT, {"model": NAME, "prompt": "a"}, key=""),
    "completion, stream": text(stream=True),
    "completion, stream with usage": text(stream=True, stream_options=_USAGE),
    "completion, stream with running usage": text(
        stream=True, stream_options=_USAGE | {"continuous_usage_stats": True}
    ),
    "completion to the end of the context": text(prompt=[5] * 509, max_tokens=20),
    "completion by GET": Call(TEXT),
    "chat": chat(),
    "chat, max_completion_tokens": chat(max_tokens=None, max_completion_tokens=4),
    "chat, stream": chat(stream=True),
    "chat, stream with usage": chat(stream=True, stream_options=_USAGE),
    "unknown model": text(model="other"),
    "chat, unknown model": chat(model="other"),
    "no JSON": Call(TEXT, "{not json"),
    "a list": Call(TEXT, "[]"),
    "another content type": Call(TEXT, "{}", content_type="text/plain"),
    "no prompt": text(prompt=None),
    "empty prompt": text(prompt=""),
    "chat, no messages": chat(messages=None),
    "chat, empty messages": chat(messages=[]),
    "chat, messages of another type": chat(messages="x"),
    "no tokens": text(max_tokens=0),
    "fewer than no tokens": text(max_tokens=-1),
    "tokens of another type": text(max_tokens="x"),
    "temperature below 0": text(temperature=-1),
    "temperature of another type": text(temperature="x"),
    "top_p above 1": text(top_p=7),
    "no choices": text(n=0),
    "stream options without a stream": text(stream_options=_USAGE),
    "more tokens than fit": text(max_tokens=100_000),
    "chat, more tokens than fit": chat(max_tokens=100_000),
    "a text too long": text(prompt="a " * 3000),
    "tokens too many": text(prompt=[5] * 600),
    "a prompt that leaves no room": text(prompt=[5] * 512),
    "chat, too long": chat(messages=[{"role": "user", "content": "a " * 3000}]),
}


# One server, asked


def answers(server: Server) -> Mapping[str, Observation]:
    """Every call's answer."""
    with server.client() as client:
        return {name: observed(call.send(client)) for name, call in CALLS.items()}


def counters(server: Server) -> Observation:
    """What a request of seven tokens moves, and what is said while one runs."""
    with server.client() as client:
        before = totals(client.get("/metrics").text, MOVING)
        assert text(max_tokens=7).send(client).status_code == 200
        # The engine's figures come with its next word.
        after = eventually("the metrics of a finished request", lambda: _finished(client, before), 10)
        with held(server):
            during = eventually("a request that runs", lambda: totals(client.get("/metrics").text, MOVING)[RUNNING], 10)
    moved = {name.removeprefix("vllm:"): after[name] - before[name] for name in MOVING if name != RUNNING}
    kept = ("prompt_tokens_total", "generation_tokens_total", "request_success_total", "num_preemptions_total")
    return {
        "names": sorted(before),
        "moved": {name: moved[name] for name in kept},
        "iterations moved": moved["iteration_tokens_total_count"] > 0,
        "running meanwhile": during,
    }


def _finished(client: httpx.Client, before: Mapping[str, float]) -> Mapping[str, float] | None:
    now = totals(client.get("/metrics").text, MOVING)
    name = "vllm:request_success_total"
    return now if now[name] > before[name] and now[RUNNING] == 0 else None


def full_queue(server: Server) -> Observation:
    """One request more than may be there."""
    with contextlib.ExitStack() as stack, server.client() as client:
        for _ in range(QUEUED):
            stack.enter_context(held(server))
        return observed(text().send(client))


def keep_alive(server: Server) -> Observation:
    """How long an idle connection is kept, in whole seconds, and whether a second request may use it."""
    with server.client() as client:
        first = client.get("/health")
        network = first.extensions["network_stream"]
        again = client.get("/health")
        same = again.extensions["network_stream"] is network
        began = time.monotonic()
        closed = network.read(1, timeout=PATIENCE) == b""
        return {"reused": same, "closed": closed, "after": round(time.monotonic() - began)}


@contextlib.contextmanager
def held(server: Server, tokens: int = 480) -> Iterator[httpx.Response]:
    """A long stream whose first token has come."""
    call = text(stream=True, max_tokens=tokens)
    headers = {"authorization": f"Bearer {KEY}"}
    with server.client(**headers) as client, client.stream("POST", call.path, json=call.body) as answer:
        lines = answer.iter_lines()
        next(lines)
        yield answer


# A life, and how it ends


def sigterm_idle(kind: Kind, folder: Path, model: str) -> Observation:
    """Without a request."""
    with up(kind, folder, model) as server:
        server.process.terminate()
        return {"code": server.ended()}


def sigterm_streaming(kind: Kind, folder: Path, model: str) -> Observation:
    """With --shutdown-timeout 0 a stream is cut, but in order."""
    with up(kind, folder, model) as server, streaming(server) as rest:
        server.process.terminate()
        return {"stream": ending(rest.result(30)), "code": server.ended()}


def sigterm_draining(kind: Kind, folder: Path, model: str) -> Observation:
    """With a shutdown timeout a stream is whole, and /health goes on saying 200 for as long as it lasts."""
    with up(kind, folder, model, "--shutdown-timeout", "60") as server, streaming(server, tokens=480) as rest:
        server.process.terminate()
        health = server.health()
        return {"stream": ending(rest.result(60)), "health": health, "code": server.ended()}


def sigterm_loading(kind: Kind, folder: Path, model: str) -> Observation:
    """The first is swallowed while the engine starts."""
    slow = {"STAND_IN": '{"start_seconds": 8}'}
    with started(kind, folder, model, *SERVING, extra=slow) as server:
        server.until_said("Starting to load model")
        server.process.terminate()
        time.sleep(1)
        is_swallowed = server.process.poll() is None
        server.process.terminate()
        return {"swallowed": is_swallowed, "ends": server.ended(60) is not None}


def engine_killed_streaming(kind: Kind, folder: Path, model: str) -> Observation:
    """The engine's process is gone in the middle of a stream."""
    with up(kind, folder, model) as server, streaming(server) as rest:
        os.kill(server.engine(), signal.SIGKILL)
        said = ending(rest.result(30))
        eventually("/health says it", lambda: server.health() in (503, 0), 2)
        return {"stream": said, "code": server.ended(), "reason": str(server.failure(Phase.SERVING).reason)}


def engine_killed_answering(kind: Kind, folder: Path, model: str) -> Observation:
    """A request without a stream is told, and the server ends with it."""
    with up(kind, folder, model) as server, ThreadPoolExecutor(1) as beside, server.client() as client:
        asked = beside.submit(text(max_tokens=480).send, client)
        with server.client() as other:
            eventually("it runs", lambda: totals(other.get("/metrics").text, MOVING)[RUNNING], 10)
        os.kill(server.engine(), signal.SIGKILL)
        answer = observed(asked.result(30))
        return {"answer": answer, "code": server.ended(4), "reason": str(server.failure(Phase.SERVING).reason)}


def engine_killed_idle(kind: Kind, folder: Path, model: str) -> Observation:
    """Nobody asks: /health knows at once, and the server ends when it next looks."""
    with up(kind, folder, model) as server:
        os.kill(server.engine(), signal.SIGKILL)
        seen = eventually("/health says it", lambda: 503 if server.health() == 503 else None, 2)
        return {"health": seen, "code": server.ended(15), "reason": str(server.failure(Phase.SERVING).reason)}


def refused(kind: Kind, folder: Path, model: str, *flags: str) -> Observation:
    """A start that ends by itself."""
    with started(kind, folder, model, *FLAGS, *flags) as server:
        code = server.ended(kind.start_seconds)
        failure = server.failure(Phase.LOADING)
        return {"code": code, "reason": str(failure.reason)}


LIVES: Mapping[str, Callable[[Kind, Path, str], Observation]] = {
    **{
        function.__name__.replace("_", " "): function
        for function in (
            sigterm_idle,
            sigterm_streaming,
            sigterm_draining,
            sigterm_loading,
            engine_killed_streaming,
            engine_killed_answering,
            engine_killed_idle,
        )
    },
    "unknown flag": lambda kind, folder, model: refused(kind, folder, model, "--no-such-flag"),
    "refused value": lambda kind, folder, model: refused(kind, folder, model, "--max-num-seqs", "many"),
    "refused choice": lambda kind, folder, model: refused(kind, folder, model, "--scheduling-policy", "luck"),
    "missing model": lambda kind, folder, model: refused(kind, folder, "/no/such/model"),
    "cache too small": lambda kind, folder, model: refused(kind, folder, model, "--max-model-len", "600000"),
}


@contextlib.contextmanager
def up(kind: Kind, folder: Path, model: str, *flags: str) -> Iterator[Server]:
    """A server that has answered a first request."""
    with started(kind, folder, model, *SERVING, *flags) as server:
        server.until_healthy()
        with server.client() as client:
            assert text(max_tokens=1).send(client).status_code == 200
        yield server


@contextlib.contextmanager
def streaming(server: Server, tokens: int = 480) -> Iterator[Future[str]]:
    """A stream under way, and in the future all of it."""
    began, call = threading.Event(), text(stream=True, max_tokens=tokens)

    def read() -> str:
        body = ""
        with server.client() as client, client.stream("POST", call.path, json=call.body) as answer:
            for piece in answer.iter_text():
                body += piece
                began.set()
        return body

    with ThreadPoolExecutor(1) as beside:
        rest = beside.submit(read)
        assert began.wait(PATIENCE)
        yield rest


def ending(body: str) -> str:
    """How a stream ended: vLLM's aborted streams end as an abort or as an error, by chance."""
    seen = events(body)
    if len(seen) < 2 or seen[-1] != "[DONE]":
        return "torn"
    last = seen[-2]
    if "error" in last:
        return "cut"
    reason = last["choices"][0]["finish_reason"]
    return "cut" if reason == "abort" else f"whole ({reason})"
