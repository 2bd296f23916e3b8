"""`llmservice chat`: answers through a port-forward, keys, failures, and a conversation."""

from __future__ import annotations

import asyncio
import base64
import builtins
import errno
import io
import json
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from llmservice_cli.chat.session import LONGEST_ANSWER, MOST_TURNS, Conversation, Piece, Reply
from llmservice_cli.errors import CliError
from llmservice_cli.forward import Channels
from llmservice_cli.load.answer import LONGEST_EVENT, Lines
from llmservice_runtime.bounded_json import Refused

from tests.support.http_servers import application, loopback_tls
from tests.unit.api_server import ApiServer
from tests.unit.cli.chat_world import DONE, WHOLE, Model, api, event, model
from tests.unit.cli.test_status import service
from tests.unit.cli_world import PODS, SERVICES, Command

__all__ = ["api", "model"]

KEY = "sk-very-secret"
SECRET = "/api/v1/namespaces/team/secrets/keys"
GUARDED = {"model": {"uri": "hf://org/model"}, "endpoint": {"apiKeySecretRef": {"name": "keys", "key": "api-key"}}}


async def test_one_answer(api: ApiServer, model: Model, llmservice: Command) -> None:
    words = ("--system", "Be kind.", "--max-tokens", "9", "--temperature", "0.5")
    done = await llmservice.within("chat", "chat", "-m", "Hello", *words)
    assert (done.code, done.out) == (0, "Good day.\n")
    assert done.err.startswith("3 tokens, ")
    assert "first token after " in done.err
    (asked,) = model.asked
    assert asked["messages"] == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    assert (asked["model"], asked["max_tokens"], asked["temperature"]) == ("chat", 9, 0.5)
    assert ("GET", f"{PODS}/chat-1/portforward", {"ports": "8000"}, None) in api.requests


async def test_one_answer_as_json_to_text_on_standard_input(
    api: ApiServer, model: Model, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
    thinking = f"data: {json.dumps({'choices': [{'delta': {'reasoning': 'Hm'}}]})}\n\n"
    model.events = (thinking, *WHOLE)
    done = await llmservice.within("chat", "chat", "-o", "json", "--model", "adapter")
    found = done.json
    assert (found["version"], found["server"], found["model"]) == (1, "team/chat", "adapter")
    assert (found["answer"], found["reasoning"], found["finishReason"]) == ("Good day.", "Hm", "stop")
    assert found["tokens"] == {"prompt": 5, "answer": 3}
    assert 0 < found["timings"]["firstTokenSeconds"] <= found["timings"]["totalSeconds"]
    assert (done.err, model.asked[0]["messages"][-1]["content"]) == ("", "Hello\n")


async def test_a_server_without_a_cluster(model: Model, llmservice: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", f"{KEY}\nanother\n")
    done = await llmservice.within("chat", "--url", f"{model.url}/v1", "--api-key-env", "THE_KEY", "-m", "Hello")
    assert (done.out, model.asked[0]["model"], {*model.keys}) == ("Good day.\n", "served", {f"Bearer {KEY}"})


async def test_a_server_with_a_certificate_of_the_systems_authorities(
    model: Model, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, authority = loopback_tls()
    monkeypatch.setenv("SSL_CERT_FILE", authority)
    async with application(model.answer, 1, tls) as url:
        done = await llmservice.within("chat", "--url", url, "-m", "Hello")
    assert (url[:8], done.out) == ("https://", "Good day.\n")


# Keys


@pytest.mark.parametrize("key", ["é", "sk-\x7f", "x" * 4097], ids=["not ASCII", "a control character", "long"])
async def test_a_key_that_no_header_can_hold(
    model: Model, llmservice: Command, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("MINE", key)
    with pytest.raises(CliError, match="MINE has no key that can be sent") as refused:
        await llmservice.within("chat", "--url", model.url, "--api-key-env", "MINE", "-m", "Hello")
    assert key not in str(refused.value)
    assert model.keys == []


def has_secret(api: ApiServer, text: str = f"{KEY}\nanother\n", entry: str = "api-key") -> None:
    api.objects[f"{SERVICES}/chat"] = {**service(), "spec": GUARDED}
    data = {entry: base64.b64encode(text.encode()).decode()}
    api.objects[SECRET] = {"metadata": {"name": "keys", "namespace": "team"}, "data": data}


async def test_the_key_of_the_secret_is_used_and_not_shown(api: ApiServer, model: Model, llmservice: Command) -> None:
    has_secret(api)
    done = await llmservice.within("chat", "chat", "-m", "Hello")
    assert model.keys == [f"Bearer {KEY}"]
    assert "the API key is from the key 'api-key' of the Secret 'keys' in namespace team" in done.err
    assert KEY not in done.err + done.out


async def test_a_key_of_the_environment_comes_first(
    api: ApiServer, model: Model, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_secret(api)
    monkeypatch.setenv("MINE", "sk-mine")
    await llmservice.within("chat", "chat", "-m", "Hello", "--api-key-env", "MINE")
    assert model.keys == ["Bearer sk-mine"]
    assert not [path for _, path, _, _ in api.requests if "secrets" in path]


@pytest.mark.parametrize(
    ("text", "entry", "code", "why"),
    [
        (KEY, "api-key", 403, "you may not read the key 'api-key' of the Secret 'keys'"),
        (KEY, "api-key", 404, "does not exist or is empty"),
        (KEY, "other", 0, "does not exist or is empty"),
        ("\n \n", "api-key", 0, "does not exist or is empty"),
        ("ключ", "api-key", 0, "does not exist or is empty"),
    ],
    ids=["right", "no Secret", "no such key", "empty", "no header"],
)
async def test_a_key_that_is_not_there(
    api: ApiServer, llmservice: Command, text: str, entry: str, code: int, why: str
) -> None:
    has_secret(api, text, entry)
    if code:
        refusal = 'User "me" cannot get resource "secrets"'
        api.answers[SECRET] = (code, refusal)
    with pytest.raises(CliError, match=why) as refused:
        await llmservice.within("chat", "chat", "-m", "Hello")
    assert "--api-key-env VARIABLE" in refused.value.remedy


# What goes wrong

FAILURES: dict[str, tuple[dict[str, Any], str, str]] = {
    "a wrong key": ({"status": 401}, "no, ", "--api-key-env"),
    "not admitted by an activator": ({"status": 403}, "no, ", "scaling.holding.from"),
    "no such model": ({"status": 404}, "no, ", "--model"),
    "too long": ({"status": 400}, "no, ", "/reset"),
    "cut": ({"events": WHOLE[:2]}, "ended before it was whole", "llmservice status chat"),
    "an error in the stream": (
        {"events": ('data: {"error": {"message": "gone"}}\n\n', DONE)}, "gone", "llmservice status chat",
    ),
    "aborted": ({"events": (event("x", finish_reason="abort"), DONE)}, "gave the request up", "llmservice status"),
    "no JSON": ({"events": ("data: {\n\n", DONE)}, "not understood", "llmservice status"),
    "an endless line": ({"events": ("data: " + "x" * (LONGEST_EVENT + 1),)}, "given up", "llmservice status"),
}  # fmt: skip


@pytest.mark.parametrize(("behaviour", "why", "remedy"), FAILURES.values(), ids=FAILURES)
async def test_no_whole_answer_is_an_error(
    api: ApiServer, model: Model, llmservice: Command, behaviour: dict[str, Any], why: str, remedy: str
) -> None:
    has_secret(api)
    for name, value in behaviour.items():
        setattr(model, name, value)
    with pytest.raises(CliError, match=why) as refused:
        await llmservice.within("chat", "chat", "-m", "Hello", "-q")
    assert remedy in refused.value.remedy
    assert KEY not in str(refused.value)
    assert "\x1b" not in str(refused.value)


async def refusing(request: web.Request) -> web.StreamResponse:
    """A port on which nobody listens."""
    socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
    await socket.prepare(request)
    for frame in (b"\0\x40\x1f", b"\1\x40\x1f", b"\1connection ", b"\1refused\x1b[2J"):
        await socket.send_bytes(frame)
    await socket.close()
    return socket


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (403, "needs get and create on pods/portforward"),
        (404, "pod chat-1 in namespace team is gone"),
        (500, "refuses the port-forward to pod chat-1: HTTP 500"),
        (refusing, "pod chat-1, port 8000: connection"),
    ],
    ids=["right", "gone", "down", "nobody listens"],
)
async def test_what_the_port_forward_says_is_the_reason(
    api: ApiServer, llmservice: Command, answer: Any, why: str
) -> None:
    api.answers[f"{PODS}/chat-1/portforward"] = answer
    with pytest.raises(CliError, match=why) as refused:
        await llmservice.within("chat", "chat", "-m", "Hello")
    assert "\x1b" not in str(refused.value)


async def test_a_folder_for_temporary_files_that_is_too_long_for_a_socket(
    api: ApiServer, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = llmservice.folder / ("x" * 120)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    assert (await llmservice.within("chat", "chat", "-m", "Hello")).out == "Good day.\n"


async def test_no_socket_for_a_port_forward(
    api: ApiServer, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(asyncio, "start_unix_server", full)
    with pytest.raises(CliError, match=r"no Unix socket for the port-forward can be made: .*No space left") as refused:
        await llmservice.within("chat", "chat", "-m", "Hello")
    assert "set TMPDIR" in refused.value.remedy


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("chat", "--url", "http://x", "-m", "x"), "named by NAME or by --url"),
        (("chat", "-m", " "), "nothing to ask"),
        (("chat", "-m", "x", "--temperature", "3"), "--temperature is 3"),
        (("--url", "http://x", "-m", "x", "--wait"), "--wait is for an LLMService"),
    ],
)
def test_wrong_arguments(llmservice: Command, words: tuple[str, ...], why: str) -> None:
    done = llmservice("chat", *words)
    assert (done.code, why in done.err) == (2, True)


# A conversation


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str | BaseException) -> None:
    """Somebody at a terminal, who presses Ctrl-D at the end."""
    left: Iterator[str | BaseException] = iter(lines)

    def read(prompt: str = "") -> str:
        line = next(left, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line

    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr(builtins, "input", read)


async def test_a_conversation_remembers_until_it_is_reset(
    api: ApiServer, model: Model, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "Hello", "", "And?", "/reset", "/help", "/nonsense", "Again")
    done = await asyncio.to_thread(llmservice, "chat", "chat")
    assert (done.code, done.out) == (0, "Good day.\n" * 3)
    assert [len(each["messages"]) for each in model.asked] == [1, 3, 1]
    assert model.asked[1]["messages"][1] == {"role": "assistant", "content": "Good day."}
    assert "there is no /nonsense" in done.err
    assert "/exit    end the chat" in done.err


async def test_a_failed_answer_does_not_end_it(
    api: ApiServer, model: Model, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.status = 503
    typed(monkeypatch, "Hello", "Hello?", "/exit", "never asked")
    done = await asyncio.to_thread(llmservice, "chat", "chat")
    assert (done.code, len(model.asked), done.err.count("error: team/chat: no,")) == (0, 2, 2)


async def test_a_refusal_of_the_cluster_does_not_end_it(
    api: ApiServer, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def once(request: web.Request) -> web.StreamResponse:
        del api.answers[PODS]
        status = {"kind": "Status", "code": 403, "message": 'User "me" cannot list resource "pods"\x1b[2J'}
        return web.json_response(status, status=403)

    api.answers[PODS] = once
    typed(monkeypatch, "Hello", "Hello?")
    done = await asyncio.to_thread(llmservice, "chat", "chat")
    assert (done.code, done.out) == (0, "Good day.\n")
    assert 'error: User "me" cannot list resource "pods"' in done.err
    assert "what to do: " in done.err
    assert "\x1b" not in done.err


async def test_a_models_name_cannot_control_the_terminal(
    model: Model, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.models = ("evil\x1b]0;title\x07\x1b[2J",)
    typed(monkeypatch, "/exit")
    done = await asyncio.to_thread(llmservice, "chat", "--url", model.url)
    assert (done.code, "evil" in done.err) == (0, True)
    assert not {"\x1b", "\x07"} & {*done.err, *done.out}


async def test_ctrl_c_at_the_prompt_ends_it(
    api: ApiServer, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, KeyboardInterrupt())
    assert (await asyncio.to_thread(llmservice, "chat", "chat")).code == 130


async def test_a_document_is_of_one_answer(llmservice: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch)
    done = await asyncio.to_thread(llmservice, "chat", "chat", "-o", "json")
    assert (done.code, "-o json is the form of one answer" in done.err) == (2, True)


def test_the_oldest_turns_are_dropped() -> None:
    conversation = Conversation("Be kind.")
    dropped = [conversation.keep(str(number), "answer") for number in range(MOST_TURNS + 2)]
    messages = conversation.asking("now")
    assert (sum(dropped), conversation.dropped, len(messages)) == (2, 2, 2 * MOST_TURNS + 2)
    assert [each["content"] for each in messages[:2]] == ["Be kind.", "2"]
    conversation.keep("long", "x" * 1_000_000)
    assert len(conversation.asking("now")) == 4, "a turn is kept whatever its length"
    assert conversation.keep("nothing came", "") == 0


# What servers send

CHUNKS = st.lists(st.binary(max_size=40) | st.sampled_from([each.encode() for each in WHOLE]), max_size=8)


@given(CHUNKS)
def test_any_stream_is_read_or_refused(chunks: list[bytes]) -> None:
    lines, reply = Lines(LONGEST_ANSWER), Reply(0.0)
    for number, chunk in enumerate(chunks):
        for line in lines.take(chunk):
            piece = reply.add(line, float(number))
            assert piece is None or (piece.text + piece.reasoning).isprintable() or "\n" in piece.text
    reply.end()
    assert reply.failure is not None or reply.finish_reason != "abort"


@given(st.lists(st.integers(min_value=1, max_value=300), max_size=12))
def test_the_same_answer_wherever_chunks_end(cuts: list[int]) -> None:
    data, lines, reply = "".join(WHOLE).encode(), Lines(LONGEST_ANSWER), Reply(0.0)
    for cut in [*cuts, len(data)]:
        chunk, data = data[:cut], data[cut:]
        for line in lines.take(chunk):
            reply.add(line, 1.0)
    reply.end()
    assert (reply.text, reply.tokens, reply.failure) == ("Good day.", 3, None)


def test_control_characters_do_not_reach_a_terminal() -> None:
    reply = Reply(0.0)
    assert reply.add(event("\x1b[2Ja\nb\tc").strip(), 0.0) == Piece(" [2Ja\nb\tc")


def test_a_stream_has_an_end() -> None:
    size = 2**12
    lines = Lines(16 * size)
    for _ in range(16):
        assert list(lines.take(b"x\n" * (size // 2)))
    with pytest.raises(Refused, match="longer than"):
        list(lines.take(b"x"))


@given(st.lists(st.binary(max_size=8), max_size=20))
def test_any_frames_of_a_port_forward(frames: list[bytes]) -> None:
    channels = Channels()
    data = b"".join(map(channels.take, frames))
    assert len(data) <= sum(map(len, frames))
    assert channels.error.isprintable()


def test_the_ports_that_come_first_are_no_data() -> None:
    channels = Channels()
    assert b"".join(map(channels.take, (b"\0\x40", b"\0\x1fab", b"\1\x40\x1f", b"\0c", b"\7x", b""))) == b"abc"
    assert channels.error == ""
