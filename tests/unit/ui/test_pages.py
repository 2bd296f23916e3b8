"""The web page: fleet and service, what may not be read, and content that would like to be more than text."""

from __future__ import annotations

import asyncio
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from llmservice_ui import fleet
from llmservice_ui.app import LONGEST, css, shown
from llmservice_ui.fleet import PAGE_ROWS, FleetRow, Query, State, page_of, row_of
from llmservice_ui.service_view import BAR, segments

from tests.unit.cli.test_status import condition
from tests.unit.cli.test_status import pod as pod_of_chat
from tests.unit.ui.ui_world import FLEET, add, service, table_of, text_of, world

PODS = "/api/v1/namespaces/team/pods"
HOSTILE = '</td><script>alert(1)</script><img src=x onerror="alert(2)">\x1b[2J\x1b]0;title\x07\u202egnp.exe{{ 7*7 }}'


# The fleet


async def test_the_fleet_is_a_table_with_the_urgent_ones_first() -> None:
    stalled = [condition("Ready", "False", "ModelNotFound"), condition("Stalled", "True", "ModelNotFound")]
    async with world() as found:
        add(found.api, service("good"), service("bad", "other", conditions=stalled, ready="0/1", gpus=4))
        page = (await (await found.signed_in()).get("/")).text
    assert "2 services in all namespaces; 1 needs attention" in text_of(page)
    first, second = table_of(page)
    assert first[:6] == ["other", "bad", "hf://org/bad", "stalled ModelNotFound", "4", "0/1"]
    assert second[:6] == ["team", "good", "hf://org/good", "ready RolledOut", "2", "1/1"]
    assert 'href="/services/other/bad"' in page


async def test_who_may_not_list_all_namespaces_sees_their_own() -> None:
    async with world() as found:
        found.users["bot"] = "system:serviceaccount:team:bot"
        add(found.api, service("mine"), service("theirs", "other"))
        found.api.answers[FLEET] = 403
        browser = await found.signed_in("bot")
        page = text_of((await browser.get("/")).text)
        assert "1 service in namespace team" in page
        assert "You may not list LLMServices of all namespaces" in page
        assert "theirs" not in page
        found.api.answers["/apis/llmservice.dev/v1alpha1/namespaces/other/llmservices"] = 403
        refused = await browser.get("/?namespace=other")
        assert refused.status_code == 403
        named = await browser.get("/?namespace=team")
        assert (named.status_code, "You may not list" in text_of(named.text)) == (200, False)


async def test_a_right_that_is_missing_is_named_with_its_remedy() -> None:
    async with world() as found:
        found.api.refused = {"llmservices": 403}
        browser = await found.signed_in()
        answer, part = await browser.get("/"), await browser.get("/?part=1")
    assert (answer.status_code, part.status_code) == (403, 403)
    page = text_of(answer.text)
    assert "jane needs list llmservices.llmservice.dev in all namespaces" in page
    assert "kubectl create clusterrolebinding llmservices-view --clusterrole=view --user=jane" in page
    assert 'name="namespace"' in answer.text, "naming a namespace may help"


@pytest.mark.parametrize(("code", "expected"), [(500, 502), (503, 502), (429, 502)])
async def test_an_api_server_that_fails_is_no_empty_fleet(code: int, expected: int) -> None:
    async with world() as found:
        browser = await found.signed_in()
        found.api.answers[FLEET] = code
        answer = await browser.get("/")
    assert (answer.status_code, "What to do:" in answer.text) == (expected, True)


BROKEN: dict[str, Any] = {
    "a status that is a list": {"status": []},
    "conditions that are none": {"status": {"conditions": "all good"}},
    "a condition without a type": {"status": {"conditions": [{"status": "True"}]}},
    "GPUs below zero": {"status": {"gpus": -1}},
    "no spec": {"spec": None},
    "a model that is a number": {"spec": {"model": {"uri": 7}}},
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
async def test_an_object_that_cannot_be_read_is_a_row_and_the_table_goes_on(change: Any) -> None:
    async with world() as found:
        add(found.api, service("a"), {**service("b"), **change}, service("c"))
        page = (await (await found.signed_in()).get("/?sort=name")).text
    a, b, c = table_of(page)
    assert (a[3], c[3]) == ("ready RolledOut", "ready RolledOut")
    assert b[1] == "b"
    assert b[3].startswith("unreadable not readable: ")


async def test_thousands_of_services_are_a_page_at_a_time_and_are_listed_once() -> None:
    async with world() as found:
        conditions = [condition("Ready", "False", "Starting")]
        add(
            found.api, *(service(f"chat-{number:04}", conditions=conditions) for number in range(2_999)), service("odd")
        )
        browser = await found.signed_in()
        first = (await browser.get("/?sort=name")).text
        last = (await browser.get("/?sort=name&page=60")).text
        some = (await browser.get("/?q=chat-0123")).text
        ready = (await browser.get("/?state=ready")).text
        beyond = (await browser.get("/?page=999999")).text
    assert len(table_of(first)) == len(table_of(last)) == PAGE_ROWS
    assert "3000 services in all namespaces; page 1 of 60" in text_of(first)
    assert len(first) < 60_000
    assert [row[1] for row in table_of(some)] == ["chat-0123"]
    assert [row[1] for row in table_of(ready)] == ["odd"]
    assert "page 60 of 60" in text_of(beyond)
    assert [path for _, path, _, _ in found.api.requests].count(FLEET) == 1


async def test_a_fleet_beyond_the_bound_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "MOST_ROWS", 3)
    async with world() as found:
        add(found.api, *(service(f"chat-{number}") for number in range(5)))
        page = (await (await found.signed_in()).get("/")).text
    assert len(table_of(page)) == 3
    assert "only the first 3 were read" in text_of(page)


async def test_viewers_see_what_their_own_token_reads() -> None:
    async with world() as found:
        found.users["other"] = "joe"
        add(found.api, service("mine"))

        async def listed(request: web.Request) -> web.StreamResponse:
            is_jane = request.headers["Authorization"] == "Bearer t0ken"
            return web.json_response({"items": [service("mine")] if is_jane else []})

        found.api.answers[FLEET] = listed
        jane, joe = await found.signed_in(), await found.signed_in("other")
        pages = await asyncio.gather(*(browser.get("/") for browser in (jane, joe, jane, joe)))
    assert [len(table_of(page.text)) for page in pages] == [1, 0, 1, 0]


# One service


def tags_of(page: str) -> list[tuple[str, dict[str, Any]]]:
    """Every tag as a browser sees it, with its attributes."""
    found = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append((tag, dict(attrs)))

    Tags().feed(page)
    return found


def broken_service(text: str) -> Any:
    failure = {"reason": text, "message": text, "remedy": text, "pod": text, "evidence": [text, text], "since": text}
    per_gpu = {"memoryGiB": 24.0, "weightsGiB": 14.0, "kvCacheGiB": 6.0}
    remedy = {"change": text, "verdict": text, "patch": text}
    plan = {"verdict": text, "reason": text, "gpu": text, "perGPU": per_gpu, "remedies": [remedy], "kvCacheTokens": 5}
    return service(
        "chat",
        conditions=[{**condition("Ready", "False", text), "message": text, "type": "Ready"}],
        failure=failure,
        plan=plan,
        progress={"pod": text, "phase": text, "message": text},
        rollout={"revision": text, "stableRevision": "x", "reason": text},
        endpoint={"url": f"javascript:{text}", "modelNames": [text]},
        measured={"vllmVersion": text},
        ready=text[:32],
    )


async def test_content_of_others_is_text_and_nothing_else() -> None:
    event = {
        "involvedObject": {"kind": HOSTILE, "name": "chat"},
        "type": "Warning",
        "reason": HOSTILE,
        "message": HOSTILE,
    }
    revision = {
        "metadata": {"labels": {"llmservice.dev/revision": HOSTILE}, "creationTimestamp": HOSTILE},
        "revision": 1,
    }
    pod = pod_of_chat("chat-1", ready=False, waiting=HOSTILE)
    async with world() as found:
        found.users["evil"] = HOSTILE
        add(found.api, {**broken_service(HOSTILE), "spec": {"model": {"uri": HOSTILE}}})
        found.api.answers["/api/v1/namespaces/team/events"] = {"items": [event]}
        found.api.answers["/apis/apps/v1/namespaces/team/controllerrevisions"] = {"items": [revision]}
        found.api.objects[f"{PODS}/chat-1"] = pod
        browser = await found.signed_in("evil")
        pages = [await browser.get(path) for path in ("/", "/services/team/chat")]
        pages.append(await browser.get("/", params={"q": HOSTILE, "namespace": HOSTILE}))
        wrong = await browser.get("/services/team/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert [page.status_code for page in (*pages, wrong)] == [200, 200, 200, 404]
    assert pages[1].text.count("&lt;script&gt;") > 15
    for page in (*pages, wrong):
        assert "<script>alert" not in page.text
        assert "<img" not in page.text
        assert not set(page.text) & {"\x1b", "\x07", "\u202e"}
        assert "49" not in re.findall(r"gnp\.exe(\S+)", page.text)
        for tag, attributes in tags_of(page.text):
            assert tag not in ("img", "style", "iframe", "object", "base")
            assert tag != "script" or attributes == {"src": "/static/page.js", "defer": None}
            assert not [name for name in attributes if name.startswith("on") or name == "style"]
            for name in ("href", "src", "action"):
                assert attributes.get(name, "/")[:1] in ("/", "#")


async def test_a_failure_comes_with_its_remedy_and_the_log() -> None:
    async with world() as found:
        add(found.api, broken_service("words"))
        page = text_of((await (await found.signed_in()).get("/services/team/chat")).text)
    for words in ("Failure: words", "What to do: words", "From the log words words", "Memory plan for words",
                  "weights 14.00 58.3 %", "KV cache 6.00 25.0 %", "left to others 4.00 16.7 %",
                  "--type merge -p words", "from x to words"):  # fmt: skip
        assert words in page


PARTS = {
    "Events": ("/api/v1/namespaces/team/events", "not listed: needs list"),
    "pods": (PODS, "not listed: needs list"),
    "revisions": ("/apis/apps/v1/namespaces/team/controllerrevisions", "not listed: needs list"),
}


@pytest.mark.parametrize(("path", "said"), PARTS.values(), ids=PARTS)
async def test_a_part_that_may_not_be_read_hides_no_other(path: str, said: str) -> None:
    async with world() as found:
        add(found.api, service("chat"))
        found.api.answers[path] = 403
        answer = await (await found.signed_in()).get("/services/team/chat")
    assert answer.status_code == 200
    assert said in text_of(answer.text)
    assert "all of it" in text_of(answer.text), "the condition's message"


@pytest.mark.parametrize(("weights", "end"), [(12.0, None), (48.0, "500.0")])
async def test_a_bar_shows_where_the_memory_ends(weights: float, end: str | None) -> None:
    async with world() as found:
        plan = {"verdict": "DoesNotFit", "perGPU": {"memoryGiB": 24.0, "weightsGiB": weights}}
        add(found.api, service("chat", plan=plan))
        page = (await (await found.signed_in()).get("/services/team/chat")).text
    assert re.findall(r'<line class="end" x1="([\d.]+)"', page) == ([end] if end else [])


@pytest.mark.parametrize(("more", "is_shown"), [({}, False), ({"kvCacheGiB": 0.5}, True)])
async def test_a_bar_shows_what_was_planned(more: dict[str, float], is_shown: bool) -> None:
    plan = {"gpu": "cpu", "verdict": "Unknown", "perGPU": {"memoryGiB": 1.0, **more}}
    async with world() as found:
        add(found.api, service("chat", plan=plan))
        page = (await (await found.signed_in()).get("/services/team/chat")).text
    assert ("Memory for the KV cache: 1.00 GiB" in page) == is_shown
    assert ("left to others" in page) == is_shown


async def test_a_controllerrevision_of_somebody_else_is_none_of_the_services() -> None:
    stranger = {
        "metadata": {"labels": {"llmservice.dev/service": "chat"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "revision": 1,
        "data": {"spec": {"template": {}}},
    }
    async with world() as found:
        add(found.api, service("chat"))
        found.api.answers["/apis/apps/v1/namespaces/team/controllerrevisions"] = {"items": [stranger]}
        answer = await (await found.signed_in()).get("/services/team/chat")
    assert (answer.status_code, "None is recorded yet." in answer.text) == (200, True)


async def test_a_part_of_a_status_that_cannot_be_read_is_named() -> None:
    async with world() as found:
        add(found.api, service("chat", plan={"perGPU": {"memoryGiB": "much"}}, failure={"evidence": "all"}))
        page = text_of((await (await found.signed_in()).get("/services/team/chat")).text)
    assert "cannot be read: status.plan.perGPU.memoryGiB is not a number" in page
    assert "cannot be read: status.failure.evidence is not a list" in page


async def test_a_service_that_is_not_there() -> None:
    async with world() as found:
        add(found.api, service("chat"))
        answer = await (await found.signed_in()).get("/services/team/chta")
    assert answer.status_code == 404
    assert "choose one of: chat" in text_of(answer.text)


async def test_the_part_that_changes_is_the_same_as_in_the_page() -> None:
    async with world() as found:
        add(found.api, service("chat"))
        browser = await found.signed_in()
        whole, part = (
            (await browser.get("/services/team/chat")).text,
            (await browser.get("/services/team/chat?part=1")).text,
        )
    assert part.strip() in whole
    assert "<html" not in part


# Pure

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "metadata": JSON
        | st.fixed_dictionaries(
            {"namespace": JSON, "name": JSON}, optional={"creationTimestamp": JSON, "generation": JSON}
        ),
        "spec": JSON | st.fixed_dictionaries({"model": JSON | st.fixed_dictionaries({"uri": JSON})}),
        "status": JSON
        | st.fixed_dictionaries(
            {},
            optional={
                "gpus": JSON,
                "ready": JSON,
                "observedGeneration": JSON,
                "failure": JSON,
                "conditions": JSON
                | st.lists(
                    st.fixed_dictionaries({"type": JSON, "status": JSON}, optional={"reason": JSON}), max_size=3
                ),
            },
        ),
    },
)


DEPLOYMENT = "/apis/apps/v1/namespaces/llm/deployments/operator"
OPERATORS: dict[str, tuple[Any, str]] = {
    "ready": ({"status": {"readyReplicas": 1}}, ""),
    "not ready": ({"status": {"replicas": 1}}, "No process of the operator llm/operator is ready."),
    "scaled to zero": ({}, "No process of the operator llm/operator is ready."),
    "gone": (None, "There is no operator: no Deployment llm/operator."),
    "not for this viewer": (403, ""),
    "no answer": (500, ""),
}


@pytest.mark.parametrize("case", OPERATORS)
async def test_states_that_nobody_keeps_up_to_date_are_told(case: str) -> None:
    deployment, said = OPERATORS[case]
    async with world(operator=("llm", "operator")) as found:
        add(found.api, service("chat"))
        if isinstance(deployment, dict):
            found.api.objects[DEPLOYMENT] = {"metadata": {"name": "operator", "namespace": "llm"}, **deployment}
        elif deployment is not None:
            found.api.answers[DEPLOYMENT] = deployment
        page = text_of((await (await found.signed_in()).get("/")).text)
    assert said in page
    assert ("What is shown is how the services were" in page) == bool(said)
    assert "1 service in all namespaces" in page


STATES: dict[str, tuple[dict[str, Any], State]] = {
    "seen by no operator": ({"observedGeneration": -1, "conditions": []}, State.NEW),
    "Ready with a failure, of an earlier one": ({"observedGeneration": 0, "failure": {"reason": "X"}}, State.FAILING),
    "of this generation": ({}, State.READY),
    "of an earlier one": ({"observedGeneration": 0}, State.NEW),
    "of an earlier one, at zero": (
        {
            "observedGeneration": 0,
            "conditions": [condition("Ready", "True", "Idle"), condition("Available", "False", "Idle")],
        },
        State.NEW,
    ),
    "of an earlier one, stalled": (
        {"observedGeneration": 0, "conditions": [condition("Ready", "False", "X"), condition("Stalled", "True", "X")]},
        State.STALLED,
    ),
    "of an earlier one, failing": (
        {"observedGeneration": 0, "conditions": [condition("Ready", "False", "X")], "failure": {"reason": "X"}},
        State.FAILING,
    ),
}


@pytest.mark.parametrize("case", STATES)
def test_a_state_is_that_of_the_spec_that_was_applied_last(case: str) -> None:
    status, state = STATES[case]
    row = row_of(service("chat", **status))
    assert (row.state, row.model) == (state, "hf://org/chat")


async def test_replicas_over_several_nodes_have_a_line_for_each_pod() -> None:
    members = [{"rank": rank, "pod": f"chat-0-{rank}", "node": f"node-{rank}", "step": "Running"} for rank in (0, 1)]
    group = {"name": "chat-0", "ready": True, "restarts": 1, "cause": "Rank 1: EngineDied: <gone>.", "members": members}
    async with world() as found:
        add(found.api, service("chat", groups=[group]))
        page = (await (await found.signed_in()).get("/services/team/chat")).text
    shown = text_of(page)
    assert "chat-0 1 chat-0-1 node-1 Running" in shown
    assert "chat-0: 1 restarts in the last hour; last end: Rank 1: EngineDied: <gone>." in shown
    assert "<gone>" not in page


@given(JSON | OBJECTS)
def test_any_object_is_a_row(found: Any) -> None:
    row = row_of(found)
    assert isinstance(row.state, State)
    page_of([row, row], Query())


@given(st.dictionaries(st.sampled_from(["namespace", "q", "state", "sort", "order", "page"]), st.text(max_size=12)))
def test_any_address_is_a_query_and_its_address_the_same_one(given: dict[str, str]) -> None:
    query = Query.of(given)
    rows = [
        FleetRow("b", "x", gpus=None),
        FleetRow("a", "y", gpus=3, replicas="10/12"),
        FleetRow("a", "x", replicas="9/9"),
    ]
    page = page_of(rows, query)
    assert 1 <= page.number <= page.pages
    assert query.href().startswith("/")
    for column in ("namespace", "gpus"):
        assert query.sorted_by(column).startswith("/")


def test_replicas_are_sorted_as_numbers_and_a_heading_turns_the_order() -> None:
    rows = [FleetRow("a", "x", replicas="9/9"), FleetRow("a", "y", replicas="10/12"), FleetRow("a", "z")]
    query = Query(sort="ready", descending=True)
    assert [row.name for row in page_of(rows, query).rows] == ["y", "x", "z"]
    assert query.sorted_by("ready") == "/?sort=ready"
    assert Query(sort="ready").sorted_by("ready") == "/?sort=ready&order=down"
    assert Query(page=3, text="a b").href(page="4") == "/?q=a+b&page=4"
    assert Query(page=3).sorted_by("name") == "/?sort=name"


@given(st.text())
def test_what_is_shown_controls_nothing(text: str) -> None:
    found = shown(text)
    assert len(found) <= LONGEST
    assert all(letter.isprintable() or letter in "\n\t" or ord(letter) > 0x9F for letter in found)


@pytest.mark.parametrize(
    ("word", "name"),
    [("in progress", "in-progress"), ("DoesNotFit", "DoesNotFit"), ("a b c\n", "other"), ("", "other")],
)
def test_a_word_of_others_is_no_name_of_a_class(word: str, name: str) -> None:
    assert css(word) == name


@given(st.lists(st.floats(min_value=-10, max_value=100), max_size=5), st.floats(min_value=0.5, max_value=200))
def test_a_bar_is_never_longer_than_it_is(parts: list[float], memory: float) -> None:
    found = segments([("kind", "label", gib) for gib in parts], memory)
    assert all(part.width >= 0 and 0 <= part.x <= BAR for part in found)
    assert sum(part.width for part in found) <= BAR + 0.1
