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
HALF_READ = replace(watched((50_000, 2_000), (50_000, 2_000)), replicas=8)
OF_MANY = replace(watched(*[(50_000, 0)] * command.MOST_REPLICAS), replicas=100)
ROUTED = "requests are routed already (spec.routing.mode: router): "
COMPARE = "what is found in a cache now is found by that routing"


def restarted(*pages: tuple[Reading, Reading], **more: Any) -> Watched:
    """The first and the last page of each replica, of which some began anew."""
    before, after = ({f"chat-{n}": pair[end] for n, pair in enumerate(pages)} for end in (0, 1))
    return Watched("team", "chat", len(pages), 60.0, before, after, **{"no_events": NO_EVENTS, **more})


FILLED = reading(20_000, 18_000, 300)
OTHER = (FILLED, reading(22_000, 19_000, 320))
MORE_QUERIES = restarted((FILLED, reading(60_000, 5_000, 900, started=500)), OTHER)
MORE_HITS = restarted((reading(55_000, 0, 300), reading(66_000, 60_000, 900, started=500)), OTHER)
SAME_START = restarted((FILLED, reading(60_000, 5_000, 900)), OTHER)
COLD = restarted(*[(reading(900_000, 800_000, 300), reading(50_000, 10, 900, started=500))] * 2)
NOT_CACHED = restarted(*[(reading(0, 0), reading(0, 0, 900))] * 2)


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
    "more queries after a restart, and fewer hits": (
        MORE_QUERIES,
        Verdict.NOT_KNOWN,
        "between 0.0 % and 90.3 %",
        "chat-0 started anew meanwhile: ask again once the cache is filled",
    ),
    "more hits after a restart than queries": (
        MORE_HITS,
        Verdict.NOT_KNOWN,
        "between 0.0 % and 10.3 %",
        "chat-0 started anew meanwhile",
    ),
    "hits that went back where no start is reported": (
        SAME_START,
        Verdict.NOT_KNOWN,
        "between 0.0 % and 90.3 %",
        "chat-0 started anew meanwhile",
    ),
    "cold caches after a restart": (
        COLD,
        Verdict.NOT_KNOWN,
        "between 0.0 % and 100.0 %",
        "chat-0, chat-1 started anew meanwhile: ask again once the cache is filled",
    ),
    "more hits than queries": (watched((50_000, 60_000), (50_000, 60_000)), Verdict.DOES_NOT, "at most 0.0 %", ""),
    "queries below nothing": (
        watched((-50_000, 60_000), (500_000, 6_000)),
        Verdict.NOT_KNOWN,
        "between 0.0 % and 98.8 %",
        "chat-0 started anew meanwhile",
    ),
    "two of eight that can be read": (
        HALF_READ,
        Verdict.NOT_KNOWN,
        "between 0.0 % and 32.9 %",
        "2 of 8 replicas alone could be read: ask again; the notes say why",
    ),
    "two of eight that can be read, with events": (
        replace(HALF_READ, no_events="", events={"chat-0": Kept(), "chat-1": Kept()}),
        Verdict.NOT_KNOWN,
        "between 0.0 % and 32.9 %",
        "2 of 8 replicas alone could be read",
    ),
    "more replicas than are watched, without a hit": (OF_MANY, Verdict.DOES_NOT, "at most 0.2 %", ""),
    "more replicas than are watched": (
        replace(watched(*[(50_000, 1_000)] * command.MOST_REPLICAS), replicas=100),
        Verdict.NOT_KNOWN,
        "between 0.0 % and 98.0 %",
        NO_EVENTS,
    ),
    "routed, with hits that none can add to": (
        watched((50_000, 48_000), (50_000, 48_000), routing="router"),
        Verdict.NOT_KNOWN,
        f"{ROUTED}at most 4.0 % more",
        COMPARE,
    ),
    "routed, without hits": (
        watched((50_000, 0), (50_000, 0), routing="router"),
        Verdict.NOT_KNOWN,
        f"{ROUTED}between 0.0 % and 100.0 %",
        f"{NO_EVENTS}; {COMPARE}",
    ),
    "routed, with hardly a request": (
        watched((100, 20), (100, 20), routing="router"),
        Verdict.NOT_KNOWN,
        f"{ROUTED}4,000 requests with 200 tokens",
        "watch longer",
    ),
    "prefix caching that is off": (
        NOT_CACHED,
        Verdict.NOT_KNOWN,
        "nothing is cached: no prompt of 1,800 requests was looked for in a prefix cache",
        "set spec.batching.prefixCaching: true",
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
    "offloading, without events": ({"batching": {"kvOffloadingSize": "1Gi"}}, "events do not show what"),
    "the node's network": ({"parallelism": {"network": {"hostNetwork": True}}}, "events are refused with hostNetwork"),
    **{
        f"events by an argument, {argument}": (
            {"runtime": {"extraArgs": ["--seed", "1", argument]}},
            "counters alone cannot tell: remove --kv-events-config from spec.runtime.extraArgs, and set spec.batching",
        )
        for argument in ("--kv-events-config={}", "--kv_events_config", "--kv-events-config.topic", "--kv-ev")
    },
    "a hash that the rules refuse with events": (
        {"batching": {"prefixCachingHashAlgo": "xxhash_cbor"}},
        "counters alone cannot tell: remove spec.batching.prefixCachingHashAlgo, and set spec.batching.kvEvents",
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_why_there_are_no_events(name: str) -> None:
    spec, why = SPECS[name]
    said = command._why_no_events(spec, 2)
    assert said.startswith(why)
    assert bool(said) == bool(why)


def test_events_of_a_part_of_the_replicas_are_not_read() -> None:
    said = command._why_no_events({"batching": {"kvEvents": {"enabled": True}}}, command.MOST_REPLICAS + 1)
    assert said == "events of more than 64 replicas are not read: measure with a router"


def test_a_replica_that_is_not_read_any_more_is_left_out_of_the_looks() -> None:
    found = watched((1, 0), (1, 0), (1, 0))
    for pods in [("chat-0", "chat-1", "chat-2")] * 2 + [("chat-0", "chat-1")] * 2:
        command._look(found, {pod: found.after[pod] for pod in pods})
    assert (len(found.waiting), document(advised(found))["busiestReplica"]) == (10, 1.0)


def test_it_is_said_in_lines() -> None:
    given = watched(
        (50_000, 20_000), (50_000, 20_000), waiting=[0.0, 7.0], loads={"chat-0": [30.0], "chat-1": [8.0, 12.0]}
    )
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


def test_a_service_that_is_routed_is_not_called_one_that_would_gain_or_not() -> None:
    given = watched((50_000, 48_000), (50_000, 48_000), routing="pool")
    assert lines(advised(given))[:2] == [
        "chat: requests are routed already (spec.routing.mode: pool): "
        "at most 4.0 % more of all prompt tokens would be found in a cache",
        "  what to do: what is found in a cache now is found by that routing: to know what it adds, compare with what "
        "was found before",
    ]
    assert document(advised(given))["routing"] == "pool"
    assert document(advised(replace(given, routing="")))["routing"] == "none"


def test_replicas_that_could_not_be_read_are_counted() -> None:
    assert "watched             2 of 8 replicas, 1m, 100,000 prompt tokens" in lines(advised(HALF_READ))


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


async def test_a_service_that_is_routed(api: ApiServer, llmservice: Command) -> None:
    api.objects[f"{SERVICES}/chat"]["spec"]["routing"] = {"mode": "router"}
    ran = await llmservice.within("advise", "routing", "chat", "--for", "0.1s", "-o", "json", "-q")
    assert (ran.code, ran.json["verdict"], ran.json["routing"]) == (3, "not known", "router")
    assert ran.json["gain"] == {"low": 0.0, "high": 0.75}, "nothing is known of where chance would send them"


def test_how_it_is_used_is_said_once(llmservice: Command) -> None:
    usage = next(line for line in llmservice("advise", "--help").out.splitlines() if "NAME" in line)
    assert usage.split(maxsplit=1)[1] == "llmservice advise routing [OPTIONS] NAME"


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
