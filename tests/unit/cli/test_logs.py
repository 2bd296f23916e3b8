"""`llmservice logs`: whose lines they are, in which order, of which containers, and why there are none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from kubeloop.resources import POD
from llmservice_cli.app import Parsed, start
from llmservice_cli.errors import CliError, ExitCode
from llmservice_cli.logs import Options, reading
from llmservice_cli.logs.reading import MOST_BYTES, NEVER, Origin, Splitter, read
from llmservice_runtime.supervisor.log_reader import LINE_LIMIT

from tests.support.http_servers import cluster
from tests.support.patience import PATIENCE
from tests.unit.api_server import ApiServer
from tests.unit.cli_world import PODS, SERVICES, Command, Json

FIXTURES = Path(__file__).parents[1] / "fixtures" / "vllm_logs"
SERVER, FETCH = Origin("chat-abc-x1y2z", "server"), Origin("chat-abc-x1y2z", "fetch")


def stamp(second: int, fraction: str = "") -> str:
    return f"2026-01-01T00:00:{second:02}{fraction}Z"


LINES: dict[str, tuple[Origin, str, tuple[str, str, str]]] = {
    "the supervisor's": (SERVER, "[llmservice] Serving", ("supervisor", "INFO", "Serving")),
    "its failure": (
        SERVER,
        "[llmservice] ModelNotFound: There is none.",
        ("supervisor", "ERROR", "ModelNotFound: There is none."),
    ),
    "vLLM's": (
        SERVER,
        "(APIServer pid=10) WARNING 11-26 04:22:00 [model.py:733] Careful",
        ("vllm", "WARNING", "(APIServer pid=10) WARNING 11-26 04:22:00 [model.py:733] Careful"),
    ),
    "uvicorn's": (
        SERVER,
        "INFO:     Application startup complete.",
        ("vllm", "INFO", "INFO:     Application startup complete."),
    ),
    "of no known level": (
        SERVER,
        "Traceback (most recent call last):",
        ("vllm", "", "Traceback (most recent call last):"),
    ),
    "in colours": (
        SERVER,
        "\x1b[0;36m(Worker pid=1)\x1b[0m ERROR 11-26 04:22:00 [a.py:1] No",
        ("vllm", "ERROR", "(Worker pid=1) ERROR 11-26 04:22:00 [a.py:1] No"),
    ),
    "that moves the cursor": (SERVER, "a\x1b[2Jb\rc\x9bd", ("vllm", "", "a [2Jb c d")),
    "of the fetch container": (FETCH, "[llmservice] 3 of 10 GiB", ("fetch", "INFO", "3 of 10 GiB")),
    "of another container": (Origin("p", "sidecar"), "hello", ("sidecar", "", "hello")),
}


@pytest.mark.parametrize(("origin", "text", "expected"), LINES.values(), ids=LINES)
def test_whose_line_it_is(origin: Origin, text: str, expected: tuple[str, str, str]) -> None:
    line = read(f"{stamp(1)} {text}".encode(), origin)
    assert (line.source, line.level, line.text) == expected
    assert line.time == stamp(1)


def test_a_real_vllms_log_is_vllms() -> None:
    for raw in (FIXTURES / "start.log").read_bytes().splitlines():
        assert read(raw, SERVER).source == "vllm"


def test_moments_are_ordered_whatever_their_digits_and_offsets() -> None:
    stamps = [stamp(1, ".5"), stamp(1, ".500000001"), "2026-01-01T02:00:01.6+02:00", stamp(2)]
    moments = [read(f"{each} x".encode(), SERVER).moment for each in stamps]
    assert moments == sorted(moments)
    assert len(set(moments)) == 4


@given(st.lists(st.binary(max_size=60), max_size=8), st.binary(max_size=200))
def test_whatever_a_pod_prints_is_bounded_and_cleaned(chunks: Sequence[bytes], tail: bytes) -> None:
    splitter, whole = Splitter(), b"".join(chunks) + tail
    raws = [raw for chunk in (*chunks, tail) for raw in splitter.feed(chunk)] + [*splitter.end()]
    assert raws == [*whole.split(b"\n")[:-1], *([whole.split(b"\n")[-1]] if whole.split(b"\n")[-1] else [])]
    for raw in raws:
        line = read(raw, SERVER)
        assert not set(map(ord, line.text)) & {*range(0x20), *range(0x7F, 0xA0)} - {9}
        assert line.level in ("", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def test_a_line_without_an_end_takes_no_memory() -> None:
    splitter = Splitter()
    for _ in range(100):
        assert list(splitter.feed(b"x" * MOST_BYTES)) == []
    (raw,) = splitter.feed(b"\n")
    assert len(raw) == MOST_BYTES
    line = read(raw, SERVER)
    assert (len(line.text), line.moment) == (LINE_LIMIT, NEVER)


# The command


def container(name: str, *, restarts: int = 0, exit_code: int | None = None, run: str = "r1") -> Json:
    state = {"running": {}} if exit_code is None else {"terminated": {"exitCode": exit_code}}
    return {"name": name, "restartCount": restarts, "state": state, "containerID": run}


def pod(name: str, *containers: Json, env: Json | None = None) -> Json:
    metadata = {"name": name, "namespace": "team", "uid": name, "labels": {"llmservice.dev/service": "chat"}}
    spec = {"containers": [{"name": each["name"], "env": [env] if env else []} for each in containers]}
    return {"metadata": metadata, "spec": spec, "status": {"containerStatuses": list(containers)}}


def service(ready: str = "True", reason: str = "RolledOut", failure: Json | None = None) -> Json:
    found = {"type": "Ready", "status": ready, "reason": reason, "message": f"{reason} it is."}
    conditions = [found | {"observedGeneration": 1, "lastTransitionTime": stamp(0)}]
    if ready == "False":
        conditions.append({**conditions[0], "type": "Stalled", "status": "True"})
    status = {"observedGeneration": 1, "conditions": conditions, "failure": failure or {}}
    return {"metadata": {"name": "chat", "namespace": "team", "generation": 1}, "spec": {}, "status": status}


def logs(found: dict[str, str]) -> Callable[[web.Request], Any]:
    """By container; a text of digits is the code of a refusal."""

    async def answer(request: web.Request) -> web.StreamResponse:
        text = found.get(request.query["container"], "400")
        if text.isdigit():
            return web.json_response({"kind": "Status", "message": f"refused: {text}"}, status=int(text))
        lines = text.splitlines(keepends=True)
        return web.Response(text="".join(lines[-int(request.query.get("tailLines", "1000")) :]))

    return answer


@pytest.fixture
def api(api_server: ApiServer) -> ApiServer:
    """With `chat` and two pods of it, whose lines alternate in time."""
    api_server.objects = {
        f"{SERVICES}/chat": service(),
        f"{PODS}/chat-a-one": pod("chat-a-one", container("server"), container("fetch")),
        f"{PODS}/chat-a-two": pod("chat-a-two", container("server", restarts=1), container("sidecar")),
    }
    first = f"{stamp(1)} [llmservice] Serving\n{stamp(3)} INFO: three\n{stamp(5)} WARNING: five\n"
    api_server.answers[f"{PODS}/chat-a-one/log"] = logs({"server": first, "fetch": f"{stamp(0)} fetched\n"})
    api_server.answers[f"{PODS}/chat-a-two/log"] = logs(
        {"server": f"{stamp(2)} two\n{stamp(4)} ERROR: four", "sidecar": f"{stamp(9)} s"}
    )
    return api_server


async def test_lines_of_all_pods_come_in_the_order_of_time(api: ApiServer, llmservice: Command) -> None:
    ran = await llmservice.within("logs", "chat")
    assert ran.out.splitlines() == [
        "one fetch       fetched",
        "one supervisor  Serving",
        "two vllm        two",
        "one vllm        INFO: three",
        "two vllm        ERROR: four",
        "one vllm        WARNING: five",
    ]
    assert ran.err == ""
    assert {query["tailLines"] for _, path, query, _ in api.requests if path.endswith("/log")} == {"100"}


async def test_lines_have_their_time_where_it_is_asked_for(api: ApiServer, llmservice: Command) -> None:
    ran = await llmservice.within("logs", "chat", "--timestamps", "--pod", "two", "-c", "sidecar")
    assert ran.out.splitlines() == [f"{stamp(9)}  two sidecar     s"]


def of_group(name: str, group: str, rank: str) -> Json:
    made = pod(name, container("server"))
    index = "leaderworkerset.sigs.k8s.io"
    made["metadata"]["labels"] |= {f"{index}/group-index": group, f"{index}/worker-index": rank}
    return made


@pytest.mark.parametrize(
    ("words", "ends"),
    [
        ((), ["0", "0-1", "1", "1-1"]),
        (("--rank", "0"), ["0", "1"]),
        (("--rank", "1"), ["0-1", "1-1"]),
        (("--rank", "1", "--pod", "1-1"), ["1-1"]),
        (("--pod", "1"), ["1"]),
    ],
    ids=str,
)
async def test_pods_of_several_nodes_are_chosen_by_replica_and_rank(
    api: ApiServer, llmservice: Command, words: Sequence[str], ends: list[str]
) -> None:
    """Two of them end in the same number."""
    names = {"chat-0": ("0", "0"), "chat-0-1": ("0", "1"), "chat-1": ("1", "0"), "chat-1-1": ("1", "1")}
    api.objects = {f"{SERVICES}/chat": service()} | {
        f"{PODS}/{name}": of_group(name, *at) for name, at in names.items()
    }
    for name in names:
        api.answers[f"{PODS}/{name}/log"] = logs({"server": f"{stamp(1)} {name}\n"})
    ran = await llmservice.within("logs", "chat", *words)
    assert sorted(line.split() for line in ran.out.splitlines()) == [[end, "vllm", f"chat-{end}"] for end in ends]


async def test_a_rank_that_no_pod_has(api: ApiServer, llmservice: Command) -> None:
    with pytest.raises(CliError, match=r"chat has no pod of rank 1\n.*choose one of: chat-a-one, chat-a-two"):
        await llmservice.within("logs", "chat", "--rank", "1")


CHOICES: dict[str, tuple[Sequence[str], list[str]]] = {
    "the supervisor's": (("--source", "supervisor"), ["Serving"]),
    "vLLM's": (("--source", "vllm", "--pod", "two"), ["two", "ERROR: four"]),
    "of a level, or of none": (("--level", "warning", "--source", "vllm"), ["two", "ERROR: four", "WARNING: five"]),
    "a pod by its whole name": (("--pod", "chat-a-two"), ["two", "ERROR: four"]),
    "a container": (("-c", "sidecar"), ["s"]),
    "the last": (("--tail", "1", "-c", "server"), ["ERROR: four", "WARNING: five"]),
    "of the run before": (("--previous",), ["two", "ERROR: four"]),
}


@pytest.mark.parametrize(("words", "texts"), CHOICES.values(), ids=CHOICES)
async def test_lines_are_chosen(words: Sequence[str], texts: list[str], api: ApiServer, llmservice: Command) -> None:
    ran = await llmservice.within("logs", "chat", "-o", "json", *words)
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert [line["text"] for line in found] == texts
    assert {line["version"] for line in found} == {1}


async def test_how_much_is_read(api: ApiServer, llmservice: Command) -> None:
    await llmservice.within("logs", "chat", "--since", "10m", "--previous")
    (query,) = [query for _, path, query, _ in api.requests if path.endswith("/log")]
    assert (query["sinceSeconds"], query["previous"], query.get("tailLines")) == ("600", "true", None)


async def test_one_pods_refusal_hides_no_other(api: ApiServer, llmservice: Command) -> None:
    api.answers[f"{PODS}/chat-a-one/log"] = logs({"server": "403", "fetch": "500"})
    ran = await llmservice.within("logs", "chat")
    assert ran.out.splitlines() == ["two vllm        two", "two vllm        ERROR: four"]
    assert "note: chat-a-one, server is not readable: refused: 403" in ran.errors
    assert "note: chat-a-one, fetch is not readable: refused: 500" in ran.errors


async def test_secrets_of_variables_are_hidden(api: ApiServer, llmservice: Command) -> None:
    secret = {"name": "HF_TOKEN", "value": "hf_secretsecret"}
    api.objects = {f"{SERVICES}/chat": service(), f"{PODS}/chat-a-x": pod("chat-a-x", container("server"), env=secret)}
    api.answers[f"{PODS}/chat-a-x/log"] = logs({"server": f"{stamp(1)} it is hf_secretsecret"})
    for form in ("table", "json"):
        out = (await llmservice.within("logs", "chat", "-o", form)).out
        assert "it is ***" in out
        assert "secretsecret" not in out


async def test_a_container_that_failed_is_read_too(api: ApiServer, llmservice: Command) -> None:
    api.objects[f"{PODS}/chat-a-two"] = pod("chat-a-two", container("sidecar", exit_code=1))
    assert "two sidecar     s" in (await llmservice.within("logs", "chat", "--pod", "two")).out


NOTHING: dict[str, tuple[Json, Sequence[Json], Sequence[str], Sequence[str]]] = {
    "no pod": (
        service("False", "DoesNotFit"),
        (),
        (),
        ("chat has no pod: DoesNotFit: DoesNotFit it is.", "Make one of"),
    ),
    "the failure's own remedy": (
        service("False", "NameConflict", {"reason": "NameConflict", "remedy": "Rename it."}),
        (),
        (),
        ("chat has no pod", "Rename it."),
    ),
    "scaled to zero": (
        service(reason="ScaledToZero"),
        (),
        (),
        ("has no pod: ScaledToZero", "Set spec.scaling.replicas"),
    ),
    "nothing has run": (
        service("False", "ImageNotFound"),
        [pod("chat-a-x", container("server", run=""))],
        (),
        ("no container of chat has a log that can be read: ImageNotFound", "Correct spec.runtime.image"),
    ),
    "nothing ended": (service(), [pod("chat-a-x", container("server"))], ("--previous",), ("leave out --previous",)),
    "another pod": (service(), [pod("chat-a-x", container("server"))], ("--pod", "y"), ("no pod 'y'", "chat-a-x")),
    "another container": (
        service(),
        [pod("chat-a-x", container("server"))],
        ("-c", "y"),
        ("no pod has a container 'y'", "choose one of: server"),
    ),
}


@pytest.mark.parametrize(("found", "pods", "words", "expected"), NOTHING.values(), ids=NOTHING)
async def test_why_there_is_nothing(
    found: Json,
    pods: Sequence[Json],
    words: Sequence[str],
    expected: Sequence[str],
    api_server: ApiServer,
    llmservice: Command,
) -> None:
    api_server.objects = {f"{SERVICES}/chat": found, **{f"{PODS}/{each['metadata']['name']}": each for each in pods}}
    with pytest.raises(CliError) as raised:
        await llmservice.within("logs", "chat", *words)
    assert raised.value.exit_code == ExitCode.FAILED
    for text in expected:
        assert text in str(raised.value)


@pytest.mark.parametrize(("words", "has_restarted"), [(("one", "-c", "fetch"), False), (("two",), True)])
async def test_filters_that_leave_nothing(
    words: Sequence[str], has_restarted: bool, api: ApiServer, llmservice: Command
) -> None:
    with pytest.raises(CliError, match="no line is left by the filters") as raised:
        await llmservice.within("logs", "chat", "--pod", *words, "--source", "supervisor")
    assert ("--previous" in str(raised.value)) == has_restarted


async def test_the_log_of_the_past_cannot_be_followed(llmservice: Command) -> None:
    with pytest.raises(CliError, match="cannot be followed"):
        await llmservice.within("logs", "chat", "-f", "--previous")


# --follow


def followed() -> ApiServer:
    api = ApiServer()
    api.objects[f"{SERVICES}/chat"] = service()
    return api


def tell(api: ApiServer, kind: str, pod: Json, text: str = "") -> None:
    """The watch of pods brings it; its log has this text, and ends as its container does."""
    api.answers[f"{PODS}/{pod['metadata']['name']}/log"] = text
    api.bring(kind, pod, POD)


async def test_it_goes_on_across_restarts_and_pods_that_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api, out = followed(), ""
    monkeypatch.setattr(reading, "PAUSE", 0.01)
    monkeypatch.setattr("llmservice_cli.api.PAUSE", 0.01)

    async def until(text: str) -> None:
        nonlocal out
        while text not in out:
            await asyncio.sleep(0.01)
            out += capsys.readouterr().out

    async with asyncio.timeout(PATIENCE), cluster(api.answer, tmp_path, monkeypatch, shutdown_timeout=0):
        task = asyncio.ensure_future(start(Parsed("logs", Options(name="chat", follow=True))))
        await api.watching[POD].wait()
        assert "chat has no pod" in capsys.readouterr().err
        ended = container("server", exit_code=1, run="r1")
        tell(api, "ADDED", pod("chat-a-one", ended), f"{stamp(1)} first\n{stamp(2, '.5')} last\n")
        await until("one vllm        last\n")
        again = container("server", restarts=1, exit_code=1, run="r2")
        tell(api, "MODIFIED", pod("chat-a-one", again), f"{stamp(2, '.5')} last\n{stamp(3)} second run\n")
        await until("one vllm        second run\n")
        tell(api, "ADDED", pod("chat-a-two", container("server", exit_code=0)), f"{stamp(1)} of another pod\n")
        await until("two vllm        of another pod\n")
        tell(api, "DELETED", pod("chat-a-one", again))
        task.cancel()
        assert await task == ExitCode.DONE
    assert out.count("last") == 1, "lines that are read again are not printed again"
    since = [query.get("sinceTime") for _, path, query, _ in api.requests if path.endswith("chat-a-one/log")]
    assert since[0] is None
    assert since[-1] == stamp(2, ".5")


async def test_a_reader_that_has_seen_enough_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llmservice: Command
) -> None:
    """`llmservice logs chat -f | head -2`: app.run knows a BrokenPipeError, and no group of them."""

    def closed(*_: object) -> None:
        raise BrokenPipeError

    api = followed()
    monkeypatch.setattr("llmservice_cli.logs.command.write", closed)
    tell(api, "ADDED", pod("chat-a-one", container("server", exit_code=0)), f"{stamp(1)} a line\n")
    async with asyncio.timeout(PATIENCE), cluster(api.answer, tmp_path, monkeypatch, shutdown_timeout=0):
        with pytest.raises(BrokenPipeError):
            await llmservice.within("logs", "chat", "-f")


async def test_pods_that_may_not_be_watched_end_it(api_server: ApiServer, llmservice: Command) -> None:
    api_server.objects[f"{SERVICES}/chat"] = service()
    api_server.refused = {"pods": 403}
    with pytest.raises(CliError, match="cannot list resource"):
        await llmservice.within("logs", "chat", "-f")
