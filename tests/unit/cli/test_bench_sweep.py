"""Sweeps of rates and of clients: points, figures, the objective, progress, the plot, the picture and the page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from llmservice_cli.bench.command import progress, time_left
from llmservice_cli.bench.lines import bars
from llmservice_cli.bench.traffic import ANSWERED, Discipline, Gathered, Point, RequestRecord
from llmservice_cli.errors import CliError, ExitCode

from tests.unit.cli.fake_vllm import FakeVllm, refuses, serving
from tests.unit.cli_world import Command

SMALL = ("--requests", "6", "--output-tokens", "2,4", "--warmup", "1", "-q")
HOSTILE = "<script>alert('x')</script>$\\bad{$ http://evil.example/ \x1b[2J&"


POINTS: dict[str, Sequence[tuple[str, float | None, int | None]]] = {
    "--rate 400,800": [("continuous", 400.0, None), ("continuous", 800.0, None)],
    "--concurrency 1,3": [("continuous", None, 1), ("continuous", None, 3)],
    "--concurrency 2": [("continuous", None, 2)],
    "--rate 400,400": [(each, 400.0, None) for each in ("static", "dynamic", "continuous")],
    "--rate 400,800 --discipline static": [("static", 400.0, None), ("static", 800.0, None)],
    "--rate 400,800 --discipline all --batch 3": [
        (each, rate, None) for each in ("static", "dynamic", "continuous") for rate in (400.0, 800.0)
    ],
}


@pytest.mark.parametrize("words", POINTS)
async def test_a_run_at_each_point(words: str, llmservice: Command) -> None:
    async with serving(FakeVllm()) as fake:
        ran = await llmservice.within("bench", "--url", fake.url, *SMALL, *words.split(), "-o", "json")
    runs = ran.json["disciplines"]
    assert [(run["discipline"], run["rate"], run["concurrency"]) for run in runs] == POINTS[words]
    assert (ran.code, {run["summary"]["answered"] for run in runs}) == (ExitCode.DONE, {6})
    asked = {tuple(row["askedTokens"] for row in run["requests"]) for run in runs}
    assert len(asked) == 1, "the same load at each point"
    assert len({body["cache_salt"] for body in fake.bodies}) == len(fake.bodies)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rate", "5", "--concurrency", "2"), "--rate and --concurrency exclude each other"),
        (("--concurrency", "2", "--discipline", "all"), "--concurrency does not go with --discipline all"),
        (("--slo", "p99:5"), "'p99:5' is no objective"),
        (("--html", "/no/such/folder/x.html"), "there is no folder /no/such/folder"),
        (("--save-load", "/no/such/folder/x"), "there is no folder /no/such/folder"),
    ],
)
async def test_nothing_is_sent_where_the_arguments_are_wrong(
    words: tuple[str, ...], message: str, llmservice: Command
) -> None:
    async with serving(FakeVllm()) as fake:
        with pytest.raises(CliError) as caught:
            await llmservice.within("bench", "--url", fake.url, *words)
    assert message in str(caught.value)
    assert fake.bodies == []


@pytest.mark.parametrize("values", ["0", "1,0", "-1", "x", "1,,2", "inf", "nan"])
def test_no_list_of_rates(values: str, llmservice: Command) -> None:
    ran = llmservice("bench", "chat", "--rate", values)
    assert (ran.code, "number above 0" in ran.err) == (ExitCode.USAGE, True)


async def test_a_sweep_for_people_and_for_vllm(llmservice: Command) -> None:
    load = llmservice.folder / "load.jsonl"
    words = ("--rate", "300,600", "--slo", "ttft:20s", "--slo", "e2el:30s", "--save-load", str(load))
    async with serving(FakeVllm()) as fake:
        ran = await llmservice.within("bench", "--url", fake.url, *SMALL, *words)
    assert (
        "keeps the SLO (ttft 20000 ms, e2el 30000 ms, for 99% of the requests) up to 600 requests a second" in ran.out
    )
    for label in ("Request goodput (req/s)", "P99 ITL (ms)", "answered requests/s", "TTFT p99", "  600/s |#"):
        assert label in ran.out, label
    saved = [json.loads(one) for one in load.read_text().splitlines()]
    assert [(body["prompt"], body["max_tokens"]) for body in sorted(fake.bodies[-6:], key=_number)] == [
        (one["prompt"], one["output_tokens"]) for one in saved
    ]


def _number(body: Mapping[str, Any]) -> int:
    return int(body["cache_salt"].rpartition("-")[2])


KEEPS: dict[str, tuple[tuple[int, ...], Any]] = {
    "all": ((), 4),
    "not the last": ((2,), 2),
    "not the first, although later ones do": ((0,), None),
}


@pytest.mark.parametrize("case", KEEPS)
async def test_up_to_which_load_the_objective_is_kept(case: str, llmservice: Command) -> None:
    """One request of six fails at the points in the table."""
    failing, expected = KEEPS[case]
    fake = FakeVllm()

    async def sometimes(request: Any, body: Any) -> Any:
        point = (len(fake.bodies) - 2) // 6  # one request warmed the server up
        if point in failing:
            return await refuses(503, "full")(request, body)
        fake.misbehaves.pop(3)
        try:
            return await fake.complete(request)
        finally:
            fake.bodies.pop()
            fake.misbehaves[3] = sometimes

    fake.misbehaves[3] = sometimes
    async with serving(fake):
        words = ("--concurrency", "1,2,4", "--slo", "e2el:60s", "-o", "yaml")
        ran = await llmservice.within("bench", "--url", fake.url, *SMALL, *words)
    found = yaml.safe_load(ran.out)
    (kept,) = found["keepsSlo"]
    assert kept == {"discipline": "continuous", "upToRate": None, "upToConcurrency": expected}
    shares = [run["summary"]["goodShare"] for run in found["disciplines"]]
    assert shares == [pytest.approx(5 / 6, abs=1e-4) if number in failing else 1.0 for number in range(3)]
    assert found["parameters"]["slo"] == {"e2el_ms": 60_000.0, "share": 0.99}


class Page(HTMLParser):
    """Tags that are open, the text, and everything that a browser might load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "data")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)


@pytest.mark.parametrize("words", [("--rate", "300,600", "--slo", "ttft:1ms"), ("--rate", "300")], ids=str)
async def test_a_page_that_loads_nothing_whatever_the_server_says(words: tuple[str, ...], llmservice: Command) -> None:
    html = llmservice.folder / "report.html"
    fake = FakeVllm(models=(HOSTILE,), misbehaves={2: refuses(503, HOSTILE)})
    async with serving(fake):
        ran = await llmservice.within("bench", "--url", fake.url, *SMALL, *words, "--html", str(html))
    assert ran.code == ExitCode.REQUESTS_FAILED
    assert "\x1b" not in ran.out
    text = html.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == [], "every tag is closed"
    assert {"svg", "table", "title"} <= page.tags
    assert not {"script", "img", "link", "iframe", "object", "image"} & page.tags
    assert [link for link in page.links if not link.startswith("#")] == []
    assert re.findall(r"url\((?!#)|@import", text) == []
    namespaces = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert {*re.findall(r'https?://[^\s"<]+', text)} == {*namespaces, fake.url, "http://evil.example/"}
    assert "default-src &#x27;none&#x27;" in text
    assert "\x1b" not in text
    ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize("name", ["curves.svg", "curves.png", "curves.pdf"])
async def test_a_picture_of_a_sweep(name: str, llmservice: Command) -> None:
    picture = llmservice.folder / name
    async with serving(FakeVllm()) as fake:
        words = ("--rate", "300,600", "--discipline", "all", "--slo", "tpot:5ms", "--picture", str(picture))
        await llmservice.within("bench", "--url", fake.url, *SMALL, *words)
    beginnings = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    drawn = picture.read_bytes()
    assert drawn.startswith(beginnings[Path(name).suffix])
    if name.endswith(".svg"):
        for label in ("requests/s", "inter-token latency, ms", "static good", "continuous p99", "SLO", "arrivals/s"):
            assert f">{label}<".encode() in drawn, label


def test_bars_use_the_room_that_there_is() -> None:
    for width in (20, 40, 80, 200):
        drawn = list(bars(["5/s", "10/s", "20/s"], [1.0, 50.0, None], " ms", width))
        assert all(len(one) <= max(width, 30) for one in drawn)
        assert drawn[1].count("#") == min(60, max(8, width - 4 - 5 - 6))
        assert (drawn[0].count("#"), drawn[2].count("#"), drawn[2].endswith("-")) == (1, 0, True)
    assert [one.count("#") for one in bars(["a", "b"], [0.0, None], "", 80)] == [0, 0]


RATES = [Point(Discipline.CONTINUOUS, rate=rate) for rate in (1.0, 2.0, 5.0)]
CLIENTS = [Point(Discipline.CONTINUOUS, concurrency=clients) for clients in (1, 4, 2)]
LEFT: dict[str, tuple[Sequence[Point], int, int, float, float | None]] = {
    # points, which runs, ended of ten, seconds so far, seconds left
    "nothing ended, of a rate": (RATES, 0, 0, 2.0, 8.0 + 5.0 + 2.0),
    "as fast as they arrive": (RATES, 0, 5, 5.0, 5.0 + 5.0 + 2.0),
    "slower than they arrive": (RATES, 1, 2, 5.0, 20.0 + 2.0),
    "all of the last": (RATES, 2, 10, 3.0, 0.0),
    "nothing ended, of clients": (CLIENTS, 0, 0, 2.0, None),
    "half, of clients": (CLIENTS, 0, 5, 20.0, 20.0 + 40.0 + 40.0),
    "fewer clients afterwards": (CLIENTS, 1, 5, 5.0, 5.0 + 20.0),
}


@pytest.mark.parametrize("case", LEFT)
def test_time_left(case: str) -> None:
    points, number, ended, seconds, expected = LEFT[case]
    gathered = Gathered(points[number], 10, 10, [RequestRecord(index, 0.0, 0.0, ANSWERED) for index in range(ended)])
    left = time_left(gathered, points, seconds)
    assert left == (None if expected is None else pytest.approx(expected))


def test_a_line_covers_the_one_before() -> None:
    few, many = (Gathered(RATES[0], 500, 400, [RequestRecord(0, 0.0, 0.0, ANSWERED)] * ended) for ended in (0, 123))
    assert len(progress(few, RATES, 3.0)) == len(progress(many, RATES, 222.0))
    assert progress(many, RATES, 222.0).startswith("1/3 continuous 1/s ")
    assert ", about " in progress(few, RATES, 3.0)
