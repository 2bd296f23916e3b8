"""Which fault a request meets on the operator's way to the API server, and that each of a storm's meets one."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

import aiohttp
import pytest
from aiohttp import web

from tests.chaos.faults import Asked, Fault, Kind, Weather, chance_of, expired_event, status
from tests.chaos.proxy import RUNNING_WATCH, FaultyWay
from tests.support.http_servers import serving
from tests.support.patience import PATIENCE


@pytest.mark.parametrize(
    ("asked", "kind", "is_possible"),
    [
        pytest.param(Asked("GET", {"watch": "true"}), Kind.EXPIRED, True, id="410 of a watch"),
        pytest.param(Asked("GET", {}), Kind.EXPIRED, False, id="no 410 of a first page"),
        pytest.param(Asked("GET", {"continue": "x"}), Kind.EXPIRED, True, id="410 of a later page"),
        pytest.param(Asked("PATCH", {}), Kind.CONFLICT, True, id="409 of a write"),
        pytest.param(Asked("GET", {}), Kind.CONFLICT, False, id="no 409 of a read"),
        pytest.param(Asked("PATCH", {}), Kind.LOST_ANSWER, True, id="a write's answer"),
        pytest.param(Asked("GET", {"watch": "true"}), Kind.DELAYED, False, id="a watch is silent instead"),
    ],
)
def test_which_fault_befalls_which_request(asked: Asked, kind: Kind, is_possible: bool) -> None:
    struck = Weather({kind: 1.0}).strike(asked, Random(0))
    assert (struck is not None and struck.kind is kind) is is_possible


def test_shares_are_of_all_requests_that_can_meet_the_fault() -> None:
    weather, chance = Weather({Kind.CONFLICT: 0.1, Kind.THROTTLED: 0.3}), Random(1)
    struck = Counter(
        fault.kind for _ in range(4000) if (fault := weather.strike(Asked("PATCH", {}), chance)) is not None
    )
    assert struck[Kind.CONFLICT] == pytest.approx(400, rel=0.15)
    assert struck[Kind.THROTTLED] == pytest.approx(1200, rel=0.15)


def test_what_is_due_comes_to_the_first_that_can_meet_it() -> None:
    weather = Weather({Kind.CONFLICT: 0.0, Kind.DROPPED: 0.0, Kind.SILENT_WATCH: 0.0})
    due = {Kind.CONFLICT, Kind.DROPPED, Kind.SILENT_WATCH}
    met = [weather.strike(asked, Random(0), due) for asked in (Asked("GET", {"watch": "true"}), Asked("PATCH", {}))]
    assert [fault.kind for fault in met if fault is not None] == [Kind.SILENT_WATCH, Kind.CONFLICT]
    assert weather.strike(Asked("PATCH", {}), Random(0)) is None


def test_the_chance_of_a_request_is_its_own_whatever_came_between() -> None:
    patch, get = Asked("PATCH", {}, "/one"), Asked("GET", {}, "/one")
    assert chance_of(1, patch, 3).random() == chance_of(1, patch, 3).random()
    others = [(2, patch, 3), (1, get, 3), (1, Asked("GET", {"watch": "1"}, "/one"), 3), (1, patch, 4)]
    assert len({chance_of(*each).random() for each in [(1, patch, 3), *others]}) == 5


def test_a_refusal_is_in_the_api_servers_words() -> None:
    code, headers, body = status(Fault(Kind.THROTTLED))
    assert (code, headers, body["reason"]) == (429, {"Retry-After": "1"}, "TooManyRequests")
    assert b'"code": 410' in expired_event()


@dataclass
class Way:
    """The way, and a client at its other end. A status of 0: the connection ended."""

    faulty: FaultyWay
    client: aiohttp.ClientSession
    url: str

    async def get(self, path: str) -> int:
        return await self.status("GET", path)

    async def write(self) -> int:
        return await self.status("PATCH", "/lease", json={})

    async def status(self, method: str, path: str, **body: object) -> int:
        try:
            async with self.client.request(method, self.url + path, **body) as answer:  # type: ignore[arg-type]
                await answer.read()
                return answer.status
        except aiohttp.ClientError:
            return 0


async def an_api_server(request: web.Request) -> web.StreamResponse:
    if "watch" not in request.query:
        return web.json_response({})
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b'{"type":"ADDED"}\n')
        await asyncio.sleep(0.01)


@asynccontextmanager
async def served(handler: object, app: web.Application) -> AsyncIterator[str]:
    app.router.add_route("*", "/{path:.*}", handler)  # type: ignore[arg-type]
    async with serving(app, shutdown_timeout=0.1) as runner:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"


@asynccontextmanager
async def way(seed: int = 1, upstream_is: object = an_api_server) -> AsyncIterator[Way]:
    async with served(upstream_is, web.Application()) as upstream:
        faulty = FaultyWay(upstream, ssl.create_default_context(), seed)
        app = web.Application()
        app.cleanup_ctx.append(faulty.opened)
        async with served(faulty.answer, app) as url, aiohttp.ClientSession() as client:
            yield Way(faulty, client, url)


async def test_every_kind_of_a_storm_strikes_whatever_its_share() -> None:
    kinds = {Kind.CONFLICT, Kind.THROTTLED, Kind.SERVER_ERROR, Kind.DROPPED, Kind.LOST_ANSWER}
    async with way() as found:
        found.faulty.turn(Weather(dict.fromkeys(kinds, 0.0)))
        codes = [await found.write() for _ in range(6)]
        assert set(found.faulty.struck) == kinds
        assert set(found.faulty.struck.values()) == {1}
        assert sorted(codes)[:2] == [0, 0]
        assert {409, 429, 200} <= set(codes)


async def test_a_storm_of_watches_ends_those_that_run_and_strikes_those_that_come_instead() -> None:
    async with way() as found:
        async with found.client.get(found.url + "/pods?watch=true") as watch:
            assert await watch.content.readline()
            found.faulty.turn(Weather({Kind.EXPIRED: 0.0}))
            with pytest.raises(aiohttp.ClientPayloadError):
                await asyncio.wait_for(watch.read(), PATIENCE)
        # A refusal at once, or an event in its middle: both say 410.
        assert await found.get("/pods?watch=true") in (410, 200)
        assert found.faulty.struck == {RUNNING_WATCH: 1, Kind.EXPIRED: 1}


async def test_the_calm_leaves_running_watches_alone_and_strikes_nothing() -> None:
    async with way() as found:
        found.faulty.turn(Weather({Kind.CONFLICT: 1.0}))
        found.faulty.turn(Weather({}))
        async with found.client.get(found.url + "/pods?watch=true") as watch:
            assert await watch.content.readline()
            found.faulty.turn(Weather({}))
            assert [await found.write() for _ in range(5)] == [200] * 5
            assert await watch.content.readline()
        assert not found.faulty.struck


async def test_the_same_seed_does_the_same_to_the_same_requests() -> None:
    async def codes(seed: int) -> list[int]:
        async with way(seed) as found:
            found.faulty.turn(Weather({Kind.SERVER_ERROR: 0.5}))
            found.faulty._due.clear()
            return [await found.write() for _ in range(20)]

    assert await codes(1) == await codes(1)
    assert await codes(1) != await codes(2)


async def nothing_to_tell(request: web.Request) -> web.StreamResponse:
    """A watch of a kind to which nothing happens."""
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.sleep(60)
    return response


async def ends_at_once(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    return response


@pytest.mark.parametrize(
    ("upstream", "kind", "struck"),
    [
        pytest.param(an_api_server, Kind.SILENT_WATCH, True, id="silent about something"),
        pytest.param(nothing_to_tell, Kind.SILENT_WATCH, False, id="silent about nothing"),
        pytest.param(nothing_to_tell, Kind.CUT_WATCH, True, id="cut, whatever it told"),
        pytest.param(ends_at_once, Kind.CUT_WATCH, False, id="ended before it was cut"),
    ],
)
async def test_what_came_to_nothing_is_due_again(upstream: object, kind: Kind, struck: bool) -> None:
    async with way(upstream_is=upstream) as found:
        found.faulty.turn(Weather({kind: 0.0}))
        await found.get("/pods?watch=true")
        assert found.faulty.struck == ({kind: 1} if struck else {})
        assert found.faulty._due == (set() if struck else {kind})
