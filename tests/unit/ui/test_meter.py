"""The web page: figures of services, measured beside the page, a few pods at a time."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from llmservice_cli import metrics
from llmservice_cli.top import sample
from llmservice_cli.top.sample import reading
from llmservice_ui import sessions
from llmservice_ui.sessions import Session

from tests.unit.cli.test_status import pod as pod_of_chat
from tests.unit.decide_world import of_another, of_the_deployment
from tests.unit.ui.ui_world import FLEET, add, service, table_of, text_of, world

METRICS = (Path(__file__).parents[1] / "fixtures" / "vllm_metrics.txt").read_text()
TEAM = "/apis/llmservice.dev/v1alpha1/namespaces/team/llmservices"
PODS = "/api/v1/namespaces/team/pods"


async def settled(session: Session) -> None:
    for meter in session._meters.values():
        await meter.settled()


async def test_a_pod_that_does_not_answer_delays_no_table_and_a_rate_takes_two_reads() -> None:
    asked, released = asyncio.Event(), asyncio.Event()
    tokens = 1000

    async def metrics(request: web.Request) -> web.StreamResponse:
        nonlocal tokens
        asked.set()
        await released.wait()
        tokens += 500
        text = re.sub(r"(?m)^(vllm:generation_tokens_total\{.*\}) .*$", rf"\1 {tokens}", METRICS)
        return web.Response(text=text)

    async with world() as found:
        add(found.api, service("chat"))
        found.api.objects[f"{PODS}/chat-1"] = pod_of_chat("chat-1")
        found.api.answers[f"{PODS}/chat-1:8000/proxy/metrics"] = metrics
        browser = await found.signed_in()
        page = (await browser.get("/")).text
        assert table_of(page)[0][6] == "…"
        assert "Tokens/s are being measured" in page
        await asked.wait()
        assert table_of((await browser.get("/")).text)[0][6] == "…"
        released.set()
        (session,) = found.sessions._sessions.values()
        await settled(session)
        page = (await browser.get("/")).text
        assert re.fullmatch(r"\d+\.\d", table_of(page)[0][6]), table_of(page)
        one = text_of((await browser.get("/services/team/chat")).text)
        assert re.search(r"Tokens/s \d+\.\d generated", one), "it begins with what the fleet's page knows"


async def test_a_pods_page_is_bounded_and_is_not_parsed_between_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()

    def parsed(text: str, at: float) -> Any:
        threads.add(threading.current_thread())
        return reading(text, at)

    monkeypatch.setattr(sample, "reading", parsed)
    async with world() as found:
        add(found.api, service("chat"))
        for number, text in enumerate((METRICS, METRICS + "#" * metrics.MOST_PAGE)):
            found.api.objects[f"{PODS}/chat-{number}"] = pod_of_chat(f"chat-{number}")
            found.api.answers[f"{PODS}/chat-{number}:8000/proxy/metrics"] = answering(text)
        browser = await found.signed_in()
        await browser.get("/")
        (session,) = found.sessions._sessions.values()
        await settled(session)
        page = text_of((await browser.get("/")).text)
    assert "1 could not be read, the first one: the answer has more than 2097152 bytes" in page
    assert threads
    assert threading.main_thread() not in threads


def answering(text: str) -> Any:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=text)

    return answer


async def test_pods_are_read_a_few_at_a_time_for_all_viewers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "READ_AT_ONCE", 2)
    now = most = 0

    async def metrics(request: web.Request) -> web.StreamResponse:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        return web.Response(text=METRICS)

    async with world() as found:
        add(found.api, service("chat"))
        for number in range(6):
            found.api.objects[f"{PODS}/chat-{number}"] = pod_of_chat(f"chat-{number}")
            found.api.answers[f"{PODS}/chat-{number}:8000/proxy/metrics"] = metrics
        found.api.objects[f"{PODS}/theirs"] = of_another(pod_of_chat("theirs"))
        for browser in [await found.signed_in() for _ in range(3)]:
            await browser.get("/")
        for session in found.sessions._sessions.values():
            await settled(session)
        assert not [path for _, path, _, _ in found.api.requests if "theirs" in path]
    assert most == 2


async def test_tabs_that_show_different_services_all_have_figures_and_lists() -> None:
    async with world() as found:
        for name in ("chat", "code"):
            add(found.api, service(name))
            pod = pod_of_chat(f"{name}-1")
            pod["metadata"]["labels"]["llmservice.dev/service"] = name
            found.api.objects[f"{PODS}/{name}-1"] = of_the_deployment(pod)
            found.api.answers[f"{PODS}/{name}-1:8000/proxy/metrics"] = answering(METRICS)
        browser = await found.signed_in()
        (session,) = found.sessions._sessions.values()
        tabs = ("/?q=chat", "/?q=code", "/?namespace=team&q=chat")
        for tab in tabs:
            await browser.get(tab)
        await settled(session)
        for tab in (*tabs, *tabs):
            assert re.fullmatch(r"\d+\.\d", table_of((await browser.get(tab)).text)[0][6]), tab
        lists = [path for _, path, _, _ in found.api.requests if path in (FLEET, TEAM)]
        assert len(lists) == 2
        for number in range(9):
            await browser.get(f"/?q={number}&namespace=team")
        assert len(session._meters) == sessions.MOST_METERS


async def test_what_the_viewer_may_not_ask_of_pods_is_said_below_the_table() -> None:
    async with world() as found:
        add(found.api, service("chat"))
        found.api.objects[f"{PODS}/chat-1"] = pod_of_chat("chat-1")
        found.api.answers[f"{PODS}/chat-1:8000/proxy/metrics"] = 403
        browser = await found.signed_in()
        await browser.get("/")
        (session,) = found.sessions._sessions.values()
        await settled(session)
        page = (await browser.get("/")).text
    assert "1 could not be read, the first one: needs get pods/proxy in namespace team" in text_of(page)
    assert table_of(page)[0][6] == "–"
