"""Requests that need no pod are answered, and none of them wakes a service."""

from __future__ import annotations

import asyncio
import io
from dataclasses import dataclass, field
from typing import Any

import pytest
from llmservice_activator.holding.interface import Refusal

from tests.support.patience import PATIENCE, until
from tests.unit.holding_world import CHAT, KEY, chat, head, target, world

KEYED = {"keys": frozenset({"right", "other"})}
RIGHT = {"Authorization": "Bearer right"}


@dataclass
class Case:
    status: int
    how: dict[str, Any] = field(default_factory=dict)
    of: dict[str, Any] = field(default_factory=dict)
    path: str = CHAT
    method: str = "POST"
    kind: str | None = None
    """The error's `type`."""
    param: str | None = None
    says: str = ""
    """A part of the error's message."""


def body(text: str | bytes, kind: str | None = "application/json") -> dict[str, Any]:
    headers = {} if kind is None else {"headers": {"Content-Type": kind}}
    return {"data": io.BytesIO(text.encode() if isinstance(text, str) else text), **headers}


AUDIO = "/v1/audio/transcriptions"


def form(*parts: tuple[str, str]) -> dict[str, Any]:
    """The body of a request for a transcription."""
    disposition = "Content-Disposition: form-data; name="
    names = {"file": '"file"; filename="a.wav"'}
    text = "".join(f"--b\r\n{disposition}{names.get(name, name)}\r\n\r\n{value}\r\n" for name, value in parts)
    return body(text + "--b--\r\n", FORM)


FORM = 'multipart/form-data; boundary="b"'
PAUSED = Refusal(503, "Paused", "spec.paused is true")

CASES = {
    "no key": Case(401, of=KEYED, kind="invalid_api_key"),
    "wrong key": Case(401, {"headers": {"Authorization": "Bearer wrong"}}, KEYED, kind="invalid_api_key"),
    "no scheme": Case(401, {"headers": {"Authorization": "right"}}, KEYED, kind="invalid_api_key"),
    "no valid key at all": Case(401, {"headers": RIGHT}, {"keys": frozenset()}, kind="invalid_api_key"),
    "key before path": Case(401, of=KEYED, path="/nothing", kind="invalid_api_key"),
    "models need a key": Case(401, of=KEYED, path="/v1/models", method="GET", kind="invalid_api_key"),
    "another spelling of a keyless path": Case(401, of=KEYED, path="/%68ealth", method="GET", kind="invalid_api_key"),
    "health": Case(200, of=KEYED, path="/health", method="GET"),
    "ping": Case(200, of=KEYED, path="/ping", method="POST"),
    "activator": Case(200, of=KEYED, path="/llmservice.dev/activator", method="GET"),
    "models": Case(200, {"headers": RIGHT}, KEYED, path="/v1/models", method="GET"),
    "unknown model": Case(404, {"json": chat() | {"model": "gpt"}}, kind="NotFoundError", param="model",
                          says="The model `gpt` does not exist. Valid aliases: adapter, llama."),
    "model is no string": Case(400, {"json": chat() | {"model": 7}}, kind="BadRequestError", param="model"),
    "unknown path": Case(404, path="/v1/nothing", kind="NotFoundError"),
    "managing path": Case(404, path="/v1/load_lora_adapter", kind="NotFoundError"),
    "metrics": Case(404, of=KEYED, path="/metrics", method="GET", kind="NotFoundError"),
    "other GET": Case(404, path="/version", method="GET", kind="NotFoundError"),
    "wrong method": Case(405, path=CHAT, method="GET", kind="MethodNotAllowedError"),
    "no JSON": Case(400, body("{"), kind="BadRequestError", says="not valid JSON"),
    "empty": Case(400, body(""), kind="BadRequestError"),
    "no object": Case(400, body('["model"]'), kind="BadRequestError"),
    "not UTF-8": Case(400, body(b'{"model":"\xff"}'), kind="BadRequestError"),
    "deep": Case(400, body("[" * 200_000), kind="BadRequestError"),
    "many values": Case(413, body('{"x":[' + "[]," * 500_000 + "0]}"), {"max_bytes": 2 << 20}, kind="request_too_large",
                        says="250000 values"),
    "long number": Case(400, body('{"n":' + "9" * 5000 + "}"), kind="BadRequestError"),
    "other content": Case(400, body("x=1", "application/x-www-form-urlencoded"), kind="BadRequestError"),
    "multipart to a path without": Case(400, body("x", "multipart/form-data; boundary=b"), kind="BadRequestError"),
    "an empty object": Case(400, body("{}"), kind="BadRequestError", says="empty"),
    "a form with another model": Case(404, form(("model", "gpt"), ("file", "x")), path=AUDIO, kind="NotFoundError",
                                      param="model"),
    "a form with another model at its end": Case(404, form(("file", "x" * 200_000), ("model", "gpt")), path=AUDIO,
                                                 kind="NotFoundError", param="model"),
    "a form without a file": Case(400, form(("model", "llama")), path=AUDIO, kind="BadRequestError", says="`file`"),
    "an empty form": Case(400, body("", FORM), path=AUDIO, kind="BadRequestError"),
    "a form of anything": Case(400, body("whatever", FORM), path=AUDIO, kind="BadRequestError"),
    "a form that ends early": Case(400, body("--b\r\n\r\nx", FORM), path=AUDIO, kind="BadRequestError"),
    "a form of many parts": Case(400, form(*[("x", "x")] * 70), path=AUDIO, kind="BadRequestError"),
    "HEAD of health": Case(200, path="/health", method="HEAD"),
    "health under the root path": Case(200, of={"root_path": "/llm"}, path="/llm/health", method="GET"),
    "another path under the root path": Case(404, of={"root_path": "/llm"}, path="/llmx" + CHAT, kind="NotFoundError"),
    "large": Case(413, body(" " * 2000), {"max_bytes": 1000}, kind="request_too_large", says="1000 bytes"),
    "large, of unstated length": Case(413, {"data": None}, {"max_bytes": 1000}, kind="request_too_large"),
    "paused": Case(503, of={"refusal": PAUSED}, kind="Paused", says="spec.paused is true"),
    "paused, wrong key": Case(401, of={"refusal": PAUSED} | KEYED, kind="invalid_api_key"),
    "paused, models": Case(503, of={"refusal": PAUSED}, path="/v1/models", method="GET", kind="Paused"),
    "paused, health": Case(503, of={"refusal": PAUSED}, path="/health", method="GET"),
    "paused, metrics without a key": Case(503, of={"refusal": PAUSED} | KEYED, path="/metrics", method="GET"),
    "paused, activator": Case(200, of={"refusal": PAUSED}, path="/llmservice.dev/activator", method="GET"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_answered_and_nobody_woken(name: str) -> None:
    case = CASES[name]
    async with world() as w:
        service = target(**case.of)
        await w.serve(service)
        how = dict(case.how)
        if "data" in how and how["data"] is None:
            how["data"] = pieces()
            how["headers"] = {"Content-Type": "application/json"}
        answer = await w.ask(service, case.path, case.method, **how)
        assert answer.status == case.status
        assert answer.headers["Connection"] == "close"
        assert ("Retry-After" in answer.headers) == (case.status in (429, 503) and case.kind is not None)
        if case.kind is None:
            assert answer.status in (200, 503)
            assert "spec.paused" not in answer.body.decode()
        else:
            assert answer.headers["Content-Type"] == "application/json"
            assert answer.error["type"] == case.kind
            assert answer.error["code"] == case.status
            assert answer.error["param"] == case.param
            assert case.says in answer.error["message"]
        await until(lambda: w.server.in_progress() == 0)
        assert w.woken == []
        assert w.counted.of["held"] == 0
        assert sum(w.counted.of.values()) == 1


async def pieces() -> Any:
    for _ in range(20):
        yield b" " * 100


ACCEPTED: dict[str, dict[str, Any]] = {
    "a served name": {"json": chat()},
    "an adapter": {"json": chat() | {"model": "adapter"}},
    "no model": {"json": {"prompt": "x"}},
    "an empty model": {"json": chat() | {"model": ""}},
    "a null model": {"json": chat() | {"model": None}},
    "no content type": {"data": b'{"model":"llama"}', "skip_auto_headers": ["Content-Type"]},
    "a charset": body('{"model":"llama"}', "Application/JSON; charset=utf-8"),
    "what Python's parser takes": body(r'{"model":"llama","temperature":NaN,"user":"\ud83d"}'),
    "the other key": {"json": chat(), "headers": {"Authorization": "bearer  other"}, "of": KEYED},
    "a form with a served name": {**form(("model", "llama"), ("file", "x" * 100_000)), "path": AUDIO},
    "a form, the name last": {**form(("file", "x" * 100_000), ("model", "adapter")), "path": AUDIO},
    "a form without a model": {**form(("file", "--b\r\n\r\n")), "path": AUDIO},
    "a form with an empty file": {**form(("file", ""), ("model", "")), "path": AUDIO},
    "under its root path": {"json": chat(), "path": "/llm" + CHAT, "of": {"root_path": "/llm"}},
    "beside its root path": {"json": chat(), "of": {"root_path": "/llm"}},
    "another path": {"json": {"input": "x"}, "path": "/v1/embeddings?x=1"},
}


@pytest.mark.parametrize("name", ACCEPTED)
async def test_held_and_woken(name: str) -> None:
    how = dict(ACCEPTED[name])
    async with world(wake_seconds=60) as w:
        service = target(**how.pop("of", {}))
        await w.serve(service)
        w.asking(service, **({"json": None} | how if "data" in how else how))
        await until(lambda: w.held(service) == 1)
        assert w.woken == [KEY]


async def test_models_lists_the_names() -> None:
    async with world() as w:
        service = target()
        await w.serve(service)
        listed = (await w.ask(service, "/v1/models", "GET")).json
        assert listed["object"] == "list"
        assert [card["id"] for card in listed["data"]] == ["adapter", "llama"]
        assert {card["object"] for card in listed["data"]} == {"model"}


async def test_wakes_go_on_while_something_is_held_and_end_with_it() -> None:
    async with world(wake_seconds=0.01) as w:
        service = target()
        await w.serve(service)
        task = w.asking(service)
        await until(lambda: len(w.woken) >= 4)
        task.cancel()
        await until(lambda: w.held(service) == 0)
        count = len(w.woken)
        timer = w.server._timer
        await until(lambda: w.server._timer is not timer)
        assert len(w.woken) == count


async def test_a_refusal_answers_what_is_held() -> None:
    async with world() as w:
        service = target()
        await w.serve(service)
        asked = await w.holding(service, ["a", "b"])
        await w.serve(target(port=service.port, refusal=Refusal(503, "OutOfMemory", "choose a larger GPU")))
        for answer in await asyncio.gather(*asked):
            assert answer.status == 503
            assert answer.headers["Retry-After"]
            assert answer.error["type"] == "OutOfMemory"
            assert answer.error["message"] == "choose a larger GPU"
        assert w.counted.of["answered refused"] == 2
        await w.serve(target(port=service.port))
        await w.holding(service, ["c"])  # the refusal is over


async def test_removal_answers_what_is_held_and_closes_the_port() -> None:
    async with world() as w:
        service, other = target(), target(KEY._replace(name="other"))
        await w.serve(service, other)
        asked = await w.holding(service, ["a"])
        await w.holding(other, ["b"])
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        assert w.server.is_listening(service.uid, service.port)
        await w.server.remove(KEY)
        answer = await asked[0]
        assert (answer.status, answer.error["type"]) == (503, "Deleted")
        assert not w.server.is_listening(service.uid, service.port)
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")  # of a connection from before
        assert head(await asyncio.wait_for(reader.read(), PATIENCE))[0] == 503
        writer.close()
        assert w.held(other) == 1
        await w.server.remove(KEY)  # again: nothing to do


async def test_another_uid_of_the_same_name_is_another_service() -> None:
    async with world() as w:
        service = target()
        await w.serve(service)
        asked = await w.holding(service, ["a"])
        again = target(uid="new", port=service.port)
        await w.serve(again)
        assert (await asked[0]).error["type"] == "Deleted"
        assert not w.server.is_listening(service.uid, service.port)
        assert w.server.is_listening("new", again.port)
        assert (await w.ask(again, "/llmservice.dev/activator", "GET")).json == {"uid": "new"}
