"""`llmservice advise routing`: what is read, what follows from it, and how it is said."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from llmservice_cli.advise import command
from llmservice_cli.advise.command import Reading, Verdict, Watched, advised, document, lines
from llmservice_cli.advise.kv_events import Kept
from llmservice_cli.errors import CliError

from tests.unit.api_server import ApiServer
from tests.unit.cli.test_status import pod, service
from tests.unit.cli.test_top import pages
from tests.unit.cli_world import PODS, SERVICES, Command

PAGE = """\
vllm:prefix_cache_queries_total{{engine="0",model_name="chat"}} {queries}
vllm:prefix_cache_hits_total{{engine="0",model_name="chat"}} {hits}
vllm:num_requests_waiting{{engine="0",model_name="chat"}} 2.0
vllm:num_requests_running{{engine="0",model_name="chat"}} 3.0
vllm:request_prefill_time_seconds_sum{{engine="0",model_name="chat"}} {seconds}
vllm:request_prefill_time_seconds_count{{engine="0",model_name="chat"}} {count}
vllm:generation_tokens_total{{engine="0",model_name="chat"}} 7
process_start_time_seconds {started}
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{blocks}"}} 1.0
"""


def reading(queries: float, hits: float, count: int = 0, blocks: int = 10_000, started: int = 9) -> Reading:
    given = {"queries": queries, "hits": hits, "seconds": count / 2, "count": count}
    return Reading.of(PAGE.format(**given, blocks=blocks, started=started))


def watched(*shares: tuple[float, float], blocks: int = 10_000, requests: int = 2_000, **more: Any) -> Watched:
    """Replicas with these queries and hits in a minute."""
    before = {f"chat-{n}": reading(5, 1) for n in range(len(shares))}
    after = {f"chat-{n}": reading(5 + q, 1 + h, requests, blocks) for n, (q, h) in enumerate(shares)}
    more = {"no_events": NO_EVENTS, **more}
    return Watched("team", "chat", len(shares), 60.0, before, after, **more)


NO_EVENTS = "counters alone cannot tell"
STARTED_ANEW = {**watched((1, 0), (1, 0)).after, "chat-1": reading(50_000, 20_000, 2_000, started=10)}


def test_a_page_of_vllm_is_read() -> None:
    assert reading(100, 40) == Reading(100, 40, 2, 3, 0, 0, 16, 10_000, 7, 9)


@pytest.mark.parametrize("text", ["", "x 1", 'vllm:num_requests_waiting{engine="0"} 1'])
def test_a_page_without_the_counters_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Reading.of(text)


VERDICTS: dict[str, tuple[Watched, Verdict, str, str]] = {
    "hits that another replica cannot add to": (
        watched((50_000, 48_000), (50_000, 48_000)),
        Verdict.DOES_NOT,
        "at most 4.0 % more",
        "",
    ),
    "no hits": (watched((50_000, 0), (50_000, 0)), Verdict.DOES_NOT, "at most 0.1 % more", ""),
    "no hits, of a few requests": (
        watched((50_000, 0), (50_000, 0), requests=27),
        Verdict.NOT_KNOWN,
        "between 0.0 % and 5.6 %",
        NO_EVENTS,
    ),
    "no hits in caches that are full": (
        watched((50_000, 0), (50_000, 0), blocks=3_000),
        Verdict.NOT_KNOWN,
        "between 0.0 % and 100.0 %",
        NO_EVENTS,
    ),
    "some hits": (
        watched((50_000, 20_000), (50_000, 20_000)),
        Verdict.NOT_KNOWN,
        "between 0.0 % and 41.6 %",
        NO_EVENTS,
    ),
    "a single replica": (Watched("team", "chat", 1), Verdict.DOES_NOT, "one replica", ""),
    "one of several that can be read": (
        replace(watched((50_000, 20_000)), replicas=3),
        Verdict.NOT_KNOWN,
        "of 3 replicas chat-0 alone could be read",
        "ask again",
    ),
    "hardly a token": (watched((100, 20), (100, 20)), Verdict.NOT_KNOWN, "with 200 tokens came in 1m", "watch longer"),
    "hardly a request": (
        watched((9_000, 20), (9_000, 20), requests=9),
        Verdict.NOT_KNOWN,
        "18 requests",
        "watch longer",
    ),
    "events that could not be read": (
        watched((50_000, 20_000), (50_000, 20_000), no_events="", events={"chat-0": Kept(failed="no right")}),
        Verdict.NOT_KNOWN,
        "between",
        "the events of chat-0 are not known: no right",
    ),
    "events that are missing": (
        watched((50_000, 20_000), (50_000, 20_000), no_events="", events={"chat-0": Kept(missed=1)}),
        Verdict.NOT_KNOWN,
        "between",
        "chat-0 had more events than are kept",
    ),
    "a replica that started anew": (
        replace(watched((1, 0), (1, 0), no_events=""), after=STARTED_ANEW),
        Verdict.NOT_KNOWN,
        "between",
        "chat-1 started anew meanwhile",
    ),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts(name: str) -> None:
    given, verdict, why, remedy = VERDICTS[name]
    advice = advised(given)
    assert (advice.verdict, why in advice.why) == (verdict, True), advice
    assert advice.remedy.startswith(remedy)
    assert bool(advice.remedy) == bool(remedy)
    assert json.dumps(document(advice))


SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "no events": ({}, "counters alone cannot tell: set spec.batching.kvEvents.enabled: true, which restarts"),
    "events": ({"batching": {"kvEvents": {"enabled": True}}}, ""),
    "events that are off": ({"batching": {"kvEvents": {"enabled": False}}}, "counters alone cannot tell"),
    "several engines": (
        {"batching": {"kvEvents": {"enabled": True}}, "parallelism": {"dataParallelSize": 2}},
        "events of a replica with several engines",
    ),
    "offloading": ({"batching": {"kvEvents": {"enabled": True}, "kvOffloadingSize": "1Gi"}}, "events do not show what"),
}


@pytest.mark.parametrize("name", SPECS)
def test_why_there_are_no_events(name: str) -> None:
    spec, why = SPECS[name]
    said = command._why_no_events(spec)
    assert said.startswith(why)
    assert bool(said) == bool(why)


def test_it_is_said_in_lines() -> None:
    given = watched((50_000, 20_000), (50_000, 20_000), waiting=[0.0, 7.0], loads={"chat-0": 30.0, "chat-1": 10.0})
    assert lines(advised(given)) == [
        "chat: routing by prefix may pay, or not: between 0.0 % and 41.6 % more would be found in a cache",
        "  what to do: counters alone cannot tell",
        "",
        "watched             2 replicas, 1m, 100,000 prompt tokens",
        "found in a cache    40.0 % now",
        "routed by prefix    40.0 to 81.6 %  (counters alone: bounds)",
        "prompts to compute  30.6 to 100.0 % of now",
        "mean prefill        0.50 s now, 0.15 to 0.50 s",
        "waiting             0 to 7 requests a replica",
        "busiest replica     1.50 times the mean",
    ]


def test_nothing_that_could_be_read_is_an_error_with_the_reason() -> None:
    with pytest.raises(CliError, match="chat-0: no answer"):
        advised(Watched("team", "chat", 2, problems=["chat-0: no answer within 10 s"]))


@pytest.fixture
def api(api_server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    """`chat` with two replicas, each of which gets 20,000 tokens between two reads and finds a quarter of them."""
    monkeypatch.setattr(command, "EVERY", 0.05)
    api_server.objects = {
        f"{SERVICES}/chat": service(),
        **{f"{PODS}/chat-{number}": pod(f"chat-{number}") for number in (1, 2)},
    }
    for number in (1, 2):
        texts = [
            PAGE.format(queries=20_000 * n, hits=5_000 * n, seconds=n, count=1_000 * n, blocks=9_000, started=9)
            for n in (1, 2)
        ]
        api_server.answers[f"{PODS}/chat-{number}:8000/proxy/metrics"] = pages(*texts)
    return api_server


async def test_from_the_command_line(api: ApiServer, llmservice: Command) -> None:
    ran = await llmservice.within("advise", "routing", "chat", "--for", "0.1s", "-o", "json", "-q")
    found = ran.json
    assert (ran.code, found["verdict"], found["replicas"], found["hitRate"]) == (3, "not known", 2, 0.25)
    assert found["gain"] == {"low": 0.0, "high": 0.2709}


async def test_a_service_without_a_ready_replica(api: ApiServer, llmservice: Command) -> None:
    api.objects = {f"{SERVICES}/chat": service(), f"{PODS}/chat-1": pod("chat-1", ready=False)}
    with pytest.raises(CliError, match="no replica of chat is ready"):
        await llmservice.within("advise", "routing", "chat")


REFUSALS = [(403, "get and create on pods/portforward"), (404, "is gone"), (503, "503")]


@pytest.mark.parametrize(("code", "says"), REFUSALS)
async def test_events_that_cannot_be_reached_are_said_with_what_is_missing(
    api: ApiServer, llmservice: Command, code: int, says: str
) -> None:
    api.objects[f"{SERVICES}/chat"]["spec"]["batching"] = {"kvEvents": {"enabled": True}}
    api.answers |= {f"{PODS}/chat-{number}/portforward": code for number in (1, 2)}
    ran = await llmservice.within("advise", "routing", "chat", "--for", "0.1s", "-o", "json", "-q")
    assert (ran.code, ran.json["verdict"], ran.json["requests"]) == (3, "not known", 0)
    assert ran.json["remedy"].startswith("the events of chat-1 are not known: ")
    assert says in ran.json["remedy"]
    assert len([path for _, path, *_ in api.requests if path.endswith("/portforward")]) <= 4, "nobody asks on and on"
