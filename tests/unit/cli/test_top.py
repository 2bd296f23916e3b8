"""`llmservice top`: rates and latencies between two reads of vLLM's metrics, sums over pods, and what it costs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from llmservice_api.constants import GROUP_INDEX_LABEL, RANK_LABEL
from llmservice_cli.cluster import connect
from llmservice_cli.errors import CliError
from llmservice_cli.metrics import LONGEST_LINE, MOST_LINES
from llmservice_cli.options import Scope
from llmservice_cli.top import sample
from llmservice_cli.top.sample import (
    Buckets,
    MetricsSample,
    Rates,
    added,
    between,
    increase,
    latency,
    quantile,
    reading,
    together,
)
from llmservice_vllm import metrics

from tests.support.stand_in import exposition
from tests.support.stand_in.engine import FIRST_TOKEN_BOUNDS, INTER_TOKEN_BOUNDS, Counts, Limits
from tests.unit.api_server import ApiServer
from tests.unit.cli.test_status import pod, service
from tests.unit.cli.test_status_held import add, page
from tests.unit.cli_world import PODS, SERVICES, Command
from tests.unit.decide_world import of_another

INF = float("inf")


class Engine:
    """As much of the stand-in's engine as its page shows."""

    reported_running, waiting = 3, 1

    def __init__(self, prompt: int = 0, generation: int = 0, seconds: float = 0.0) -> None:
        self.limits, self.counts = Limits(), Counts(prompt, generation)
        if generation:
            self.counts.first_token.add(seconds)
            self.counts.inter_token.add(seconds)

    def cache_usage(self) -> float:
        return 0.25


def text_of(*engine: Any) -> str:
    return exposition.page(Engine(*engine), "chat")  # type: ignore[arg-type]


# Quantiles

TABLE: dict[str, tuple[Buckets, float | None]] = {
    "evenly within a bucket": ({1.0: 0, 2.0: 10, INF: 10}, 1.5),
    "from 0 in the first one": ({1.0: 10, 2.0: 10, INF: 10}, 0.5),
    "the highest finite bound": ({1.0: 1, 2.0: 2, INF: 10}, 2.0),
    "across buckets": ({1.0: 4, 2.0: 8, INF: 8}, 1.0),
    "nothing observed": ({1.0: 0, INF: 0}, None),
    "no bucket of all": ({1.0: 5, 2.0: 5}, None),
    "only the bucket of all": ({INF: 5}, None),
    "none": ({}, None),
    "a negative first bound": ({-1.0: 5, INF: 5}, -1.0),
    "a count below the one before": ({1.0: 10, 2.0: 3, INF: 10}, 0.5),
}


@pytest.mark.parametrize(("buckets", "expected"), TABLE.values(), ids=TABLE)
def test_the_median(buckets: Buckets, expected: float | None) -> None:
    assert quantile(0.5, buckets) == expected


BUCKETS = st.dictionaries(
    st.floats(min_value=-1e18, max_value=1e18) | st.just(INF), st.floats(min_value=0, max_value=2.0**63), max_size=12
)


@given(BUCKETS, st.floats(min_value=0, max_value=1), st.floats(min_value=0, max_value=1))
def test_quantiles_of_any_histogram_lie_in_its_bounds_and_in_order(buckets: Buckets, one: float, other: float) -> None:
    low, high = quantile(min(one, other), buckets), quantile(max(one, other), buckets)
    if low is None or high is None:
        assert low is high
        return
    finite = [bound for bound in buckets if bound != INF]
    slack = 1e-9 * max(map(abs, finite))
    assert min(0.0, *finite) - slack <= low <= high + slack
    assert high <= max(finite) + slack


@given(BUCKETS, BUCKETS)
def test_nothing_is_observed_less_than_never(before: Buckets, after: Buckets) -> None:
    assert all(count >= 0 for count in increase(before, after).values())


def test_two_servers_are_one_histogram() -> None:
    assert added([{1.0: 1, INF: 2}, {1.0: 3, INF: 3}]) == {1.0: 4, INF: 5}


# Rates


def test_rates_between_two_reads() -> None:
    first, second = reading(text_of(10, 100, 0.05), 5.0), reading(text_of(30, 400, 0.05), 7.0)
    found = between(first, second)
    assert (found.prompt_per_second, found.generation_per_second) == (10.0, 150.0)
    assert (found.running, found.waiting, found.kv_cache_usage) == (3, 1, 0.25)
    assert found.ttft.p50 is None, "nothing was observed in between"
    grown = between(reading(text_of(), 5.0), second)
    assert grown.ttft == latency({0.04: 0, 0.06: 1, INF: 1})
    assert grown.itl == latency({0.025: 0, 0.05: 1, INF: 1})


@pytest.mark.parametrize("before", [None, MetricsSample(7.0)], ids=["no read before", "no time in between"])
def test_what_needs_two_reads(before: MetricsSample | None) -> None:
    found = between(before, reading(text_of(30, 400, 0.05), 7.0))
    assert (found.running, found.generation_per_second, found.ttft.p50) == (3, None, None)


def test_a_restart_gives_no_negative_rate() -> None:
    found = between(reading(text_of(1000, 1000, 1.9), 0.0), reading(text_of(4, 6, 0.05), 2.0))
    assert (found.prompt_per_second, found.generation_per_second) == (2.0, 3.0)
    assert found.ttft.p50 == latency({0.04: 0, 0.06: 1, INF: 1}).p50


def test_sums_and_the_fullest() -> None:
    one, other = Rates(running=1, kv_cache_usage=0.2, prompt_per_second=1.0), Rates(running=2, kv_cache_usage=0.9)
    found = together([one, other, Rates()])
    assert (found.running, found.kv_cache_usage, found.prompt_per_second) == (3, 0.9, 1.0)
    assert found.waiting is None


REFUSED = {
    "NaN": 'vllm:num_requests_running{engine="0"} NaN',
    "infinite": 'vllm:generation_tokens_total{engine="0"} +Inf',
    "negative": 'vllm:generation_tokens_total{engine="0"} -1',
    "a bucket without a bound": "vllm:time_to_first_token_seconds_bucket 1",
    "a bound that is no number": 'vllm:time_to_first_token_seconds_bucket{le="x"} 1',
    "a bound out of range": 'vllm:time_to_first_token_seconds_bucket{le="-Inf"} 1',
    "a negative count": 'vllm:time_to_first_token_seconds_bucket{le="1"} -1',
    "another page": "<html>",
    "nothing": "",
    "many lines": "vllm:num_requests_running 1\n" * (MOST_LINES + 1),
    "a line that takes the parser long": 'vllm:num_requests_running{a="' + r"\"" * LONGEST_LINE + '"} 1',
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_pages_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        reading(text, 0.0)


LINES = st.text(st.sampled_from('vllm:num_requests_running{}le="+Inf,0.5 1eNa#\\\t'), max_size=60)
NAMED = st.builds(
    "{}{}{}".format,
    st.sampled_from([metrics.INTER_TOKEN, metrics.FIRST_TOKEN, metrics.RUNNING, metrics.GENERATION_TOKENS]),
    st.sampled_from(["", "_bucket", '_bucket{le="0.5"} ', '_bucket{le="+Inf"} ', " ", "{"]),
    LINES | st.floats().map(str),
)


@given(st.lists(NAMED | LINES, max_size=8), st.lists(NAMED | LINES, max_size=8))
def test_any_page_is_read_or_refused(first: list[str], second: list[str]) -> None:
    readings = []
    for at, lines in enumerate((first, second)):
        try:
            readings.append(reading("\n".join(lines), float(at)))
        except ValueError:
            return
    found = between(*readings)
    rates = (found.running, found.prompt_per_second, found.generation_per_second, found.kv_cache_usage)
    assert all(value is None or 0 <= value < INF for value in rates)
    assert all(value is None or abs(value) < INF for value in (found.ttft.p50, found.ttft.p99, found.itl.p99))


@pytest.mark.vllm
def test_bounds_are_vllms() -> None:
    from vllm.v1.metrics.buckets import INTER_TOKEN_LATENCY_BUCKETS, TIME_TO_FIRST_TOKEN_BUCKETS

    assert (FIRST_TOKEN_BOUNDS, INTER_TOKEN_BOUNDS) == (TIME_TO_FIRST_TOKEN_BUCKETS, INTER_TOKEN_LATENCY_BUCKETS)


# The command


def pages(*texts: Any) -> Callable[[web.Request], Any]:
    """Answers with one after the other; the last stays."""
    left: Iterator[Any] = iter(texts)
    latest: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        latest[:] = [next(left, *latest)]
        if isinstance(latest[0], int):
            return web.json_response({"kind": "Status", "code": latest[0], "message": "no"}, status=latest[0])
        return web.Response(text=latest[0])

    return answer


@pytest.fixture
def api(api_server: ApiServer) -> ApiServer:
    """`chat` with two pods of which one is ready, and one that is none of its, and `other` without a pod."""
    api_server.objects = {
        f"{SERVICES}/chat": service(),
        f"{SERVICES}/other": service("other", ready="0/1", gpus=0),
        f"{PODS}/chat-0": of_another(pod("chat-0")),
        f"{PODS}/chat-1": pod("chat-1"),
        f"{PODS}/chat-2": pod("chat-2", ready=False),
    }
    api_server.answers[f"{PODS}/chat-1:8000/proxy/metrics"] = pages(text_of(), text_of(20, 40, 0.05))
    return api_server


def once(*words: str) -> tuple[str, ...]:
    return ("top", *words, "--interval", "0.2s")


async def test_a_line_for_each_service(api: ApiServer, llmservice: Command) -> None:
    done = await llmservice.within(*once())
    header, chat, other = (line.split() for line in done.out.splitlines())
    assert header[:8] == ["NAME", "READY", "GPUS", "RUN", "WAIT", "HELD", "KV", "GEN/S"]
    assert chat[:7] == ["chat", "1/1", "2", "3", "1", "-", "25%"]
    assert chat[-4:] == ["50ms", "60ms", "38ms", "50ms"]
    assert other == ["other", "0/1", "0", *["-"] * 10]
    assert re.search(r"services: 2, pods: 2; over \d\.\d s; the API server was asked", done.err)
    assert "kB/s before compression" in done.err


async def test_the_document_has_rates_and_pods(api: ApiServer, llmservice: Command) -> None:
    found = (await llmservice.within(*once("chat", "-o", "json"))).json
    (chat,) = found["services"]
    assert (found["version"], chat["requestsRunning"], chat["gpus"], chat["kvCacheUsage"]) == (1, 3, 2, 0.25)
    assert 0 < chat["generationTokensPerSecond"] <= 200
    assert chat["generationTokensPerSecond"] == pytest.approx(2 * chat["promptTokensPerSecond"], rel=1e-3)
    assert chat["timeToFirstTokenSeconds"] == {"p50": 0.05, "p99": 0.0598}
    ready, not_ready = chat["pods"]
    assert (ready["name"], ready["requestsWaiting"]) == ("chat-1", 1)
    assert not_ready == {"name": "chat-2", "ready": False, "unread": "the pod is not ready"}
    assert found["cost"]["requests"] == 1, "lists are read less often than pages"
    assert found["cost"]["bytes"] > 1000


async def test_a_worker_is_not_asked_and_counts_nothing(api: ApiServer, llmservice: Command) -> None:
    """Of a replica over several nodes the leader's vLLM counts all requests; a worker's answers none."""
    worker = pod("chat-1-1")
    worker["metadata"]["labels"] |= {RANK_LABEL: "1", GROUP_INDEX_LABEL: "1"}
    api.objects[f"{PODS}/chat-1-1"] = worker
    (chat,) = (await llmservice.within(*once("chat", "-o", "json"))).json["services"]
    assert chat["requestsRunning"] == 3
    (said,) = (each for each in chat["pods"] if each["name"] == "chat-1-1")
    assert said == {"name": "chat-1-1", "ready": True, "unread": "its leader answers requests"}
    assert not [path for _, path, *_ in api.requests if path.startswith(f"{PODS}/chat-1-1:")]


@pytest.mark.parametrize(
    ("answer", "why"),
    [(403, "chat-1: no"), ("<html>", "chat-1: not understood: it holds no metric of vLLM"), ("\x1b[2J", "chat-1: not")],
    ids=["refused", "another page", "controls"],
)
async def test_one_pods_fault_hides_no_other_service(
    api: ApiServer, llmservice: Command, answer: Any, why: str
) -> None:
    api.answers[f"{PODS}/chat-1:8000/proxy/metrics"] = pages(answer)
    done = await llmservice.within(*once())
    assert why in done.err
    assert "\x1b" not in done.err + done.out
    assert len(done.out.splitlines()) == 3


async def test_pods_that_may_not_be_listed(api: ApiServer, llmservice: Command) -> None:
    api.refused = {"pods": 403}
    done = await llmservice.within(*once())
    assert "pods are not listed: needs list pods in namespace team" in done.err
    assert len(done.out.splitlines()) == 3


async def test_services_that_may_not_be_listed(api: ApiServer, llmservice: Command) -> None:
    api.refused = {"llmservices": 403}
    with pytest.raises(CliError, match="cannot list"):
        await llmservice.within(*once())


@pytest.mark.parametrize(
    ("change", "why"),
    [("deleted", "there is no LLMService 'chat'"), ("refused", None)],
    ids=["it is deleted", "services may not be read any more"],
)
async def test_a_named_service_later(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, change: str, why: str | None
) -> None:
    now = 0.0
    async with connect(Scope()) as connection, sample.Metered(connection.credentials) as transport:
        sampler = sample.Sampler(transport, "team", "chat", lambda: now)
        first = await sampler.read()
        now = sample.LISTS_EVERY
        if change == "deleted":
            del api.objects[f"{SERVICES}/chat"]
        else:
            api.refused = {"llmservices": 403}
        if why is not None:
            with pytest.raises(CliError, match=why):
                await sampler.read()
        else:
            later = await sampler.read()
            assert later.services == first.services
            assert later.problem.startswith("services are those of 10 s ago or more: User")


async def test_too_many_pods_are_left_out_and_counted(
    api: ApiServer, llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "MOST_PODS", 1)
    api.objects[f"{PODS}/chat-3"] = pod("chat-3")
    done = await llmservice.within(*once())
    assert "1 pods were not asked" in done.err
    assert not [path for _, path, _, _ in api.requests if "chat-3:" in path]


async def test_what_activators_hold_is_asked_once_for_all_services(api: ApiServer, llmservice: Command) -> None:
    for name in ("chat", "other"):
        api.objects[f"{SERVICES}/{name}"] = service(name, holding={"port": 10240, "maxRequests": 100})
    add(api, page(7, 3.0))
    found = (await llmservice.within(*once("-o", "json", "--sort", "held"))).json
    assert [(each["name"], each["held"]["requests"]) for each in found["services"]] == [("chat", 7), ("other", 0)]
    assert len([path for _, path, _, _ in api.requests if ":9090/" in path]) == 2


@pytest.mark.parametrize(
    ("words", "names"),
    [(("--sort", "name"), ["chat", "other"]), (("--sort", "gpus"), ["other", "chat"]), ((), ["chat", "other"])],
)
async def test_it_is_sorted(api: ApiServer, llmservice: Command, words: tuple[str, ...], names: list[str]) -> None:
    api.objects[f"{SERVICES}/other"] = service("other", gpus=8)
    found = (await llmservice.within(*once("-o", "json", *words))).json
    assert [each["name"] for each in found["services"]] == names


def test_wrong_arguments(llmservice: Command) -> None:
    done = llmservice("top", "chat", "-A")
    assert (done.code, "a name goes with one namespace" in done.err) == (2, True)
    assert llmservice("top", "--interval", "0").code == 2
