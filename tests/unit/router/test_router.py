"""A router's pod: vllm-router, Envoy and what keeps both as the replicas are, with servers in place of vLLM."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from llmservice_router import envoy
from llmservice_router.__main__ import memory_limit
from prometheus_client.parser import text_string_to_metric_families

from tests.support.http_servers import application
from tests.support.patience import PATIENCE
from tests.support.ports import free_port

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
Json = dict[str, Any]


@dataclass
class Replica:
    """Answers with what it was asked. A stream sends its second token once `go` is set."""

    name: str
    url: str = ""
    seen: list[web.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    streams: int = 0
    rendered: int = 0
    tokenized: int = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/health":
            return web.Response()
        if request.path.endswith("/render"):  # since vLLM 0.30, without --enable-scale-out
            self.rendered += 1
            return web.json_response({"error": {"type": "PermissionDeniedError", "code": 403}}, status=403)
        body = await request.content.read()  # of any size
        if request.path == "/tokenize" and request.headers.get("User-Agent") is None:
            self.tokenized += 1
            text = body[:8000]
            tokens = [zlib.crc32(text[at : at + 4]) % 32_000 for at in range(0, len(text), 4)]
            return web.json_response({"count": len(tokens), "max_model_len": 9999, "tokens": tokens})
        self.seen.append(request)
        self.bodies.append(body)
        if b'"prompt":"fail"' in body.replace(b" ", b""):
            return web.json_response({"error": {"message": "failed"}}, status=500)
        if b'"stream":true' not in body.replace(b" ", b""):
            return web.json_response({"of": self.name})
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        await stream.write(_event("one"))
        self.streams += 1
        await self.go.wait()
        await stream.write(_event("two") + b"data: [DONE]\n\n")
        return stream

    @property
    def line(self) -> str:
        return self.url.removeprefix("http://").replace(":", " ")


def _event(text: str) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": None, "logprobs": None}
    made = {"id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    return f"data: {json.dumps(made)}\n\n".encode()


@dataclass
class Pod:
    """The router's, as its clients and the kubelet see it."""

    process: asyncio.subprocess.Process
    file: Path
    port: int
    state_port: int
    router_port: int
    has_router: bool
    session: aiohttp.ClientSession
    log: list[str] = field(default_factory=list)

    def replicas(self, *replicas: Replica) -> None:
        made = self.file.with_suffix(".new")
        made.write_text("\n".join(each.line for each in replicas))
        made.replace(self.file)

    async def ask(
        self, path: str = COMPLETIONS, body: Json | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        sent = {"model": "m", "prompt": "a"} if body is None else body
        # A large body that is not in a file is a warning of aiohttp's.
        data, headers = io.BytesIO(json.dumps(sent).encode()), {"Content-Type": "application/json", **(headers or {})}
        async with self.session.post(f"http://127.0.0.1:{self.port}{path}", data=data, headers=headers) as answer:
            return answer.status, await answer.text()

    async def probe(self, path: str = "/readyz") -> tuple[int, str]:
        async with self.session.get(f"http://127.0.0.1:{self.state_port}{path}") as answer:
            return answer.status, (await answer.text()).strip()

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not await self.holds(condition):
                    assert self.process.returncode is None, "".join(self.log)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError("".join(self.log)) from None

    async def holds(self, condition: Callable[[], Awaitable[bool]]) -> bool:
        try:
            return await condition()
        except aiohttp.ClientConnectionError:
            return False

    async def ready(self) -> None:
        """vllm-router, where it runs, chooses the replica of prompts."""

        async def is_ready() -> bool:
            return (await self.probe())[0] == 200 and (self.is_by_router() or not self.has_router)

        await self.until(is_ready)

    def is_by_router(self) -> bool:
        return f'"port_value": {self.router_port}' in (self.file.parent / "run" / envoy.ROUTER_FILE).read_text()

    async def unready(self, why: str) -> None:
        async def is_unready() -> bool:
            return await self.probe() == (503, why)

        await self.until(is_unready)

    async def workers(self) -> int:
        """As vllm-router counts them, which clients cannot ask for."""
        async with self.session.get(f"http://127.0.0.1:{self.router_port}/workers") as answer:
            return int((await answer.json())["total"])


@asynccontextmanager
async def replicas(*names: str) -> AsyncIterator[list[Replica]]:
    async with AsyncExitStack() as stack:
        made = [Replica(name) for name in names]
        for each in made:
            each.url = await stack.enter_async_context(application(each.answer, shutdown_timeout=1))
        yield made


@asynccontextmanager
async def router(folder: Path, *arguments: str) -> AsyncIterator[Pod]:
    ports = {name: free_port() for name in ("port", "state-port", "router-port", "workers-port", "metrics-port")}
    file = folder / "replicas"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.router_of_file", str(file), f"--folder={folder / 'run'}"),
        *(f"--{name}={port}" for name, port in ports.items()),
        "--propagation-seconds=1",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session:
        has_router = not any(each.startswith("--policy=") and envoy.CACHE_AWARE not in each for each in arguments)
        pod = Pod(process, file, ports["port"], ports["state-port"], ports["router-port"], has_router, session)
        reading = asyncio.create_task(_read(process, pod.log))
        try:
            yield pod
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
            await reading


async def _read(process: asyncio.subprocess.Process, log: list[str]) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        log.append(line.decode())


async def test_prompts_are_routed_and_what_else_vllm_answers_goes_to_any_replica(tmp_path: Path) -> None:
    async with replicas("a", "b") as (a, b), router(tmp_path) as pod:
        await pod.unready("the DNS has not answered yet")
        pod.replicas()
        await pod.unready("no replica is ready")
        pod.replicas(a, b)
        await pod.ready()
        assert await pod.probe("/livez") == (200, "")
        for path in (CHAT, COMPLETIONS):
            body = {"model": "m", "prompt": "a", "messages": [{"role": "user", "content": "a"}]}
            assert (await pod.ask(path, body))[0] == 200
        for path in ("/tokenize", "/v1/embeddings", "/workers", "/workers?url=x", "/add_worker", "/v1/models"):
            assert (await pod.ask(path))[0] == 200
        await pod.until(lambda: _is(pod.workers, 2))
        assert [each.path for each in a.seen + b.seen].count("/workers") == 2, "of replicas, which have no such path"
        prompts = [each for each in a.seen + b.seen if each.path in (CHAT, COMPLETIONS)]
        assert all("x-envoy-external-address" not in each.headers for each in prompts)


async def _is(count: Callable[[], Awaitable[int]], wanted: int) -> bool:
    return await count() == wanted


async def test_the_same_prompt_goes_to_the_same_replica(tmp_path: Path) -> None:
    async with replicas("a", "b", "c") as found, router(tmp_path) as pod:
        pod.replicas(*found)
        await pod.ready()
        await pod.until(lambda: _is(pod.workers, 3))
        bodies = [{"model": "m", "prompt": f"{conversation} " * 400} for conversation in range(6)]
        turns = [await asyncio.gather(*(pod.ask(body=body) for body in bodies)) for _ in range(5)]
        for answers in zip(*turns, strict=True):
            assert len(set(answers)) == 1
        assert len([each for each in found if each.seen]) > 1


async def test_a_session_goes_to_the_same_replica(tmp_path: Path) -> None:
    async with replicas("a", "b", "c") as found, router(tmp_path, "--policy=consistent_hash") as pod:
        pod.replicas(*found)
        await pod.ready()
        for session in range(12):
            said = [(await pod.ask(headers={"X-Session-ID": f"s{session}"}))[1] for _ in range(4)]
            assert len(set(said)) == 1
        assert len([each for each in found if each.seen]) > 1
        answers = {(await pod.ask())[1] for _ in range(40)}
        assert len(answers) == 3, "without the header by chance"


@pytest.mark.parametrize("policy", ["consistent_hash", "power_of_two"])
async def test_a_policy_that_does_not_read_prompts_changes_none(policy: str, tmp_path: Path) -> None:
    """vllm-router would refuse this body, and does not run."""
    async with replicas("a") as (a,), router(tmp_path, f"--policy={policy}") as pod:
        await pod.unready("the DNS has not answered yet")
        pod.replicas()
        await pod.unready("no replica is ready")
        pod.replicas(a)
        await pod.ready()
        body: Json = {"model": "m", "stream": None, "messages": [{"role": "assistant", "reasoning_content": "r"}]}
        assert (await pod.ask(CHAT, body))[0] == 200
        assert json.loads(a.bodies[-1]) == body
        assert len(_children(pod.process.pid)) == 1
        pod.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(pod.process.wait(), PATIENCE) == 0


CHANGED: dict[str, tuple[Json, Json]] = {
    "nothing": ({}, {}),
    "a field that it does not know": ({"guided_json": {"a": 1}}, {"guided_json": {"a": 1}}),
    "thoughts of before": (
        {"messages": [{"role": "assistant", "content": "a", "reasoning_content": "r"}]},
        {"messages": [{"role": "assistant", "content": "a", "reasoning": "r"}]},
    ),
    "a strict tool": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
    ),
}
REFUSED: dict[str, Json] = {
    "stream: null": {"stream": None},
    "a structural tag": {"response_format": {"type": "structural_tag", "structures": [], "triggers": []}},
}


async def test_what_vllm_router_makes_of_a_chat(tmp_path: Path) -> None:
    """Which docs/serving/routing.md says."""
    chat: Json = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    async with replicas("a") as (a,), router(tmp_path) as pod:
        pod.replicas(a)
        await pod.ready()
        for case, (sent, come) in CHANGED.items():
            assert (await pod.ask(CHAT, chat | sent))[0] == 200, case
            assert {**json.loads(a.bodies[-1]), **chat, **come} == json.loads(a.bodies[-1]), case
        for case, sent in REFUSED.items():
            assert (await pod.ask(CHAT, chat | sent))[0] == 422, case
        assert 1 < a.tokenized <= len(CHANGED), "a call more of each replica for a prompt's tokens"
        assert a.rendered == 0


@pytest.mark.parametrize("policy", envoy.OF_POLICY)
async def test_one_page_of_metrics_has_what_clients_and_replicas_see(policy: str, tmp_path: Path) -> None:
    async with replicas("a", "b") as found, router(tmp_path, f"--policy={policy}") as pod:
        pod.replicas(*found)
        await pod.ready()
        for _ in range(3):
            assert (await pod.ask(body={"model": "m", "prompt": "a"}))[0] == 200
        _, page = await pod.probe("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(page + "\n")}
    completed = families["envoy_http_downstream_rq_completed"].samples
    assert sum(each.value for each in completed) == 3
    assert ("vllm_router" in page) is (policy == envoy.CACHE_AWARE)


async def test_a_replica_that_goes_gets_nothing_more_and_ends_its_streams(tmp_path: Path) -> None:
    async with replicas("a", "b") as (a, b), router(tmp_path) as pod:
        pod.replicas(a)
        await pod.ready()
        stream = asyncio.create_task(pod.ask(body={"model": "m", "prompt": "a", "stream": True}))
        await pod.until(lambda: _is(_async(lambda: a.streams), 1))
        pod.replicas(b)
        await pod.until(lambda: _has_only(pod, b))
        seen = len(a.seen)
        for _ in range(20):
            assert await pod.ask() == (200, '{"of": "b"}')
            assert (await pod.ask("/tokenize"))[1] == '{"of": "b"}'
        assert len(a.seen) == seen
        a.go.set()
        status, body = await stream
        assert status == 200
        assert body.endswith("[DONE]\n\n")


def _async(count: Callable[[], int]) -> Callable[[], Awaitable[int]]:
    async def found() -> int:
        return count()

    return found


async def _has_only(pod: Pod, replica: Replica) -> bool:
    async with pod.session.get(f"http://127.0.0.1:{pod.router_port}/workers") as answer:
        return [each["url"] for each in (await answer.json())["workers"]] == [replica.url]


async def test_a_replica_that_is_dead_before_its_address_is_gone_is_left_out(tmp_path: Path) -> None:
    """Prompts that vllm-router sent there failed, and others lose nothing. It is a process of its own, so that nothing
    is left of it."""
    (tmp_path / "health").touch()
    port = free_port()
    command = (sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path))
    dead = Replica("dead", f"http://127.0.0.1:{port}")
    null = asyncio.subprocess.DEVNULL
    server = await asyncio.create_subprocess_exec(*command, stdout=null, stderr=null)
    async with replicas("a") as (a,), router(tmp_path) as pod:
        pod.replicas(a, dead)
        await pod.ready()
        await pod.until(lambda: _is(pod.workers, 2))
        server.kill()
        await server.wait()
        others = Counter([(await pod.ask("/tokenize"))[0] for _ in range(40)])
        assert others == {200: 40}

        async def all_are_answered() -> bool:
            return {(await pod.ask(body={"model": "m", "prompt": f"{n} " * 300}))[0] for n in range(40)} == {200}

        await pod.until(all_are_answered)
        long = {"model": "m", "prompt": "x" * (8 << 20)}
        assert Counter([(await pod.ask("/tokenize", long))[0] for _ in range(6)]) == {200: 6}


async def test_a_request_that_fails_everywhere_takes_no_other_with_it(tmp_path: Path) -> None:
    async with replicas("a", "b") as found, router(tmp_path) as pod:
        pod.replicas(*found)
        await pod.ready()
        await pod.until(lambda: _is(pod.workers, 2))
        assert (await pod.ask(body={"model": "m", "prompt": "fail"}))[0] == 500
        sent = [request.path for each in found for request in each.seen]
        assert sent.count(COMPLETIONS) == 1, "it is sent to one replica"
        said = Counter([(await pod.ask(body={"model": "m", "prompt": f"{n} " * 300}))[0] for n in range(20)])
        assert said == {200: 20}


async def test_replicas_that_do_not_let_the_router_in_make_no_ready_router(tmp_path: Path) -> None:
    closed = Replica("closed", f"http://127.0.0.1:{free_port()}")
    async with router(tmp_path, "--policy=consistent_hash") as pod:
        pod.replicas(closed)
        await pod.unready("no replica answers")


async def test_a_proxy_of_http_1_0_is_answered(tmp_path: Path) -> None:
    async with replicas("a") as (a,), router(tmp_path, "--policy=power_of_two") as pod:
        pod.replicas(a)
        await pod.ready()
        reader, writer = await asyncio.open_connection("127.0.0.1", pod.port)
        writer.write(b"POST /v1/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
        assert b" 200 " in await reader.readline()
        writer.close()


async def test_a_dns_that_does_not_answer_changes_nothing(tmp_path: Path) -> None:
    async with replicas("a") as (a,), router(tmp_path) as pod:
        pod.replicas(a)
        await pod.ready()
        pod.file.unlink()
        await pod.until(lambda: _is(_async(lambda: any("1 replicas are kept" in line for line in pod.log)), True))
        assert (await pod.ask())[0] == 200
        await pod.ready()


async def test_the_end_waits_for_streams_and_sends_clients_elsewhere(tmp_path: Path) -> None:
    async with replicas("a") as (a,), router(tmp_path) as pod:
        pod.replicas(a)
        await pod.ready()
        stream = asyncio.create_task(pod.ask(body={"model": "m", "prompt": "a", "stream": True}))
        await pod.until(lambda: _is(_async(lambda: a.streams), 1))
        pod.process.send_signal(signal.SIGTERM)
        await pod.unready("it ends")
        for path in (COMPLETIONS, "/tokenize"):
            address = f"http://127.0.0.1:{pod.port}{path}"
            async with pod.session.post(address, json={"model": "m", "prompt": "a"}) as answer:
                assert (answer.status, answer.headers["Connection"]) == (200, "close")
        await asyncio.sleep(1.5)
        assert pod.process.returncode is None, "a stream is in progress"
        a.go.set()
        assert (await stream)[1].endswith("[DONE]\n\n")
        assert await asyncio.wait_for(pod.process.wait(), PATIENCE) == 0


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _name(pid: int) -> str:
    """Of a process; empty: it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except FileNotFoundError:
        return ""


async def test_a_prompt_of_32_mib_arrives_whole(tmp_path: Path) -> None:
    async with replicas("a") as (a,), router(tmp_path) as pod:
        pod.replicas(a)
        await pod.ready()
        prompt = "x" * (32 << 20)
        assert (await pod.ask(body={"model": "m", "prompt": prompt}))[0] == 200
        assert json.loads(a.bodies[-1])["prompt"] == prompt


async def test_sessions_have_one_replica_on_every_path(tmp_path: Path) -> None:
    """A response in the background is asked for where it is computed."""
    async with replicas("a", "b", "c") as found, router(tmp_path, "--policy=consistent_hash") as pod:
        pod.replicas(*found)
        await pod.ready()
        for session in ("one", "two", "three"):
            paths = ("/v1/responses", "/v1/responses/resp_1/cancel", "/v1/embeddings", CHAT)
            said = {(await pod.ask(path, headers={"X-Session-ID": session}))[1] for path in paths for _ in range(4)}
            assert len(said) == 1


async def test_a_client_that_keeps_its_connection_leaves_once_there_is_no_replica(tmp_path: Path) -> None:
    """While the last replica still answers, so that nothing is lost; what holds requests is behind the Service."""
    async with replicas("a") as (a,), router(tmp_path) as pod:
        pod.replicas(a)
        await pod.ready()
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", pod.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", pod.port)

        async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
            writer.write(b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))
            return head.lower()

        for connection in ((idle_reader, idle_writer), (reader, writer)):
            assert b"connection: close" not in await ask(*connection)
        pod.replicas()
        await pod.unready("no replica is ready")
        assert await asyncio.wait_for(idle_reader.read(), PATIENCE) == b"", "an idle connection ends at once"
        head = b""
        while b"connection: close" not in head:
            try:
                head = await ask(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):  # it was idle, and ended, as this one began
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", pod.port)
                continue
            assert b" 200 " in head
        pod.replicas(a)
        await pod.ready()
        await pod.until(lambda: _stays(pod))
        for each in (idle_writer, writer):
            each.close()


async def _stays(pod: Pod) -> bool:
    async with pod.session.post(f"http://127.0.0.1:{pod.port}/tokenize", json={}) as answer:
        return "Connection" not in answer.headers


def _program(pod: Pod, name: str) -> int:
    return next(pid for pid in _children(pod.process.pid) if name in _name(pid))


@pytest.mark.parametrize("name", ["envoy", "vllm"])
async def test_a_program_that_is_killed_is_started_again(name: str, tmp_path: Path) -> None:
    """Without vllm-router no prompt fails that was not in progress; without Envoy connections are refused."""
    async with replicas("a", "b") as found, router(tmp_path) as pod:
        pod.replicas(*found)
        await pod.ready()
        killed = _program(pod, name)
        os.kill(killed, signal.SIGKILL)
        if name == "envoy":
            await pod.until(lambda: _is(_async(lambda: len(_children(pod.process.pid))), 2))
            await pod.until(lambda: _answers(pod))
        else:
            await pod.until(lambda: _is(_async(lambda: int(pod.is_by_router())), 0))
            for number in range(50):
                said = await pod.ask(body={"model": "m", "prompt": f"{number} " * 300})
                assert said[0] == 200, said
        await pod.until(lambda: _is(pod.workers, 2))
        await pod.ready()
        assert killed not in _children(pod.process.pid)
        assert (await pod.ask())[0] == 200
        pod.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(pod.process.wait(), PATIENCE) == 0


async def _answers(pod: Pod) -> bool:
    return (await pod.ask())[0] == 200


async def test_a_program_that_ends_again_and_again_ends_the_container(tmp_path: Path) -> None:
    async with replicas("a") as found, router(tmp_path) as pod:
        pod.replicas(*found)
        await pod.ready()
        killed: set[int] = set()
        children = _children(pod.process.pid)
        while pod.process.returncode is None:
            fresh = {pid for pid in _children(pod.process.pid) if "vllm" in _name(pid)} - killed
            for pid in fresh:
                os.kill(pid, signal.SIGKILL)
            killed |= fresh
            await asyncio.sleep(0.05)
        assert await asyncio.wait_for(pod.process.wait(), PATIENCE) == 1
        assert len(killed) == 3
        assert "vllm-router ended 3 times within 60 s" in "".join(pod.log)
        assert not [pid for pid in children if _name(pid)]


@pytest.mark.parametrize("heap_bytes", [None, 64 << 20])
@pytest.mark.parametrize("policy", envoy.OF_POLICY)
async def test_envoy_takes_the_configuration(policy: str, heap_bytes: int | None, tmp_path: Path) -> None:
    ports = {"port": free_port(), "workers_port": free_port()}
    made = envoy.bootstrap(policy=policy, host="127.0.0.1", **ports, folder=str(tmp_path), heap_bytes=heap_bytes)
    for name in (envoy.ENDPOINTS_FILE, envoy.ROUTER_FILE, envoy.CLOSING_FILE):
        (tmp_path / name).write_text("0")
    command = (str(Path(sys.prefix, "bin", "envoy")), "--mode", "validate", "--config-yaml", json.dumps(made))
    checked = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, said = await checked.communicate()
    assert checked.returncode == 0, said.decode()


LIMITS: dict[str, tuple[dict[str, str], int | None]] = {
    "version 2": ({"memory.max": "1073741824\n"}, 1 << 30),
    "version 2, without a limit": ({"memory.max": "max\n"}, None),
    "version 1": ({"memory/memory.limit_in_bytes": "1073741824\n"}, 1 << 30),
    "version 1, without a limit": ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
    "none": ({}, None),
}


@pytest.mark.parametrize(("files", "limit"), LIMITS.values(), ids=LIMITS)
def test_the_memory_that_the_container_may_use(files: dict[str, str], limit: int | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_limit(tmp_path) == limit
