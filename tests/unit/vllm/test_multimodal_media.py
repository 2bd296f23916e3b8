"""Which media a server fetches for its clients: vLLM's own connector, given what the operator renders."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from llmservice_vllm.versions import flag_table, known_versions

from tests.support.http_servers import threaded
from tests.unit.operator.test_build_deployment import env, render, server

FLAG = "--allowed-media-domains"
SWITCH = "VLLM_MEDIA_URL_ALLOW_REDIRECTS"


def flags(**multimodal: object) -> list[str]:
    arguments: list[str] = server(render(multimodal=multimodal))["args"]
    return arguments[arguments.index("--") + 1 :]


def domains(given: list[str]) -> list[str]:
    """The values of the flag, as argparse reads them."""
    after = given[given.index(FLAG) + 1 :]
    return after[: next(place for place, token in enumerate(after) if token.startswith("--"))]


def test_every_version_has_the_flags() -> None:
    for version in known_versions():
        by_spelling = flag_table(version).by_spelling
        assert (by_spelling[FLAG].values, by_spelling["--allowed-local-media-path"].values) == ("+", 1), version


def test_domains_are_rendered_and_by_default_nobody_is_asked() -> None:
    assert domains(flags()) == domains(flags(allowedMediaDomains=[])) == ["spec.multimodal.allowedMediaDomains"]
    assert domains(flags(allowedMediaDomains=["a.example", "b.example"])) == ["a.example", "b.example"]
    assert FLAG not in flags(allowedMediaDomains=["*"])
    assert "--allowed-local-media-path" not in flags(allowedMediaDomains=["*"])


def test_redirects_are_off_until_the_user_says_otherwise() -> None:
    assert env(render())[SWITCH] == "0"
    assert env(render(runtime={"env": [{"name": SWITCH, "value": "1"}]}))[SWITCH] == "1"


@dataclass
class Site:
    """Answers /a, redirects /away to `target`, and counts."""

    port: int
    target: str = ""
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def site() -> Iterator[Site]:
    found = Site(0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            self.send_response(302 if self.path == "/away" else 200)
            if self.path == "/away":
                self.send_header("Location", found.target)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"media")

    with threaded(Handler) as found.port:
        found.target = f"http://localhost:{found.port}/a"
        yield found


class Bytes:
    """What a request's media become, without a codec."""

    def get_max_bytes(self) -> int | None:
        return None

    def load_bytes(self, data: bytes) -> bytes:
        return data

    def load_base64(self, kind: str, data: str) -> bytes:
        return data.encode()

    def load_file(self, path: Any) -> bytes:
        return bytes(path.read_bytes())


def fetch(url: str, listed: list[str], *, is_async: bool) -> bytes:
    """As vLLM would in a pod of that spec."""
    from vllm.multimodal.media.connector import MediaConnector

    given = flags(allowedMediaDomains=listed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, env(render())[SWITCH])
        connector = MediaConnector(allowed_media_domains=domains(given) if FLAG in given else None)
        if is_async:
            return bytes(asyncio.run(_fetched(connector, url)))
        return bytes(connector.load_from_url(url, Bytes(), fetch_timeout=5))


async def _fetched(connector: Any, url: str) -> bytes:
    try:
        found: bytes = await connector.load_from_url_async(url, Bytes(), fetch_timeout=5)
        return found
    finally:
        client, connector.connection._async_client = connector.connection._async_client, None
        if client is not None:
            await client.close()


HOST = "127.0.0.1"
DOMAINS, FILES = "allowed domains", "allowed-local-media-path"
NOBODY = r"\['spec.multimodal.allowedMediaDomains'\]"
FETCHED: list[tuple[str, list[str], bytes]] = [
    (f"http://{HOST}:PORT/a", [HOST], b"media"),
    (f"http://{HOST}:PORT/a", ["*"], b"media"),
    # The redirect's own body is what it gets, and that is no picture.
    (f"http://{HOST}:PORT/away", [HOST], b"media"),
    # What is in the request needs no host.
    ("data:image/png;base64,bWVkaWE=", [], b"bWVkaWE="),
]
REFUSED: list[tuple[str, list[str], str]] = [
    (f"http://{HOST}:PORT/a", [], DOMAINS),
    (f"http://{HOST}:PORT/a", ["localhost"], DOMAINS),
    (f"http://{HOST}:PORT/a", ["27.0.0.1"], DOMAINS),
    (f"HTTP://{HOST}:PORT/a", [], DOMAINS),
    (f"http://u:p@{HOST}:PORT/a", ["localhost"], DOMAINS),
    # The word for nobody is no host.
    ("http://spec.multimodal.allowedMediaDomains/a", [], NOBODY),
    ("file:///proc/1/environ", [], FILES),
    ("file:///proc/1/environ", ["*"], FILES),
]


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
class TestVllmsOwnConnector:
    """What it does with what is rendered."""

    @pytest.mark.parametrize(("url", "listed", "media"), FETCHED)
    def test_fetched(self, site: Site, url: str, listed: list[str], media: bytes, is_async: bool) -> None:
        assert fetch(url.replace("PORT", str(site.port)), listed, is_async=is_async) == media
        assert len(site.asked) == ("PORT" in url), "a listed host cannot send it elsewhere"

    @pytest.mark.parametrize(("url", "listed", "why"), REFUSED)
    def test_refused(self, site: Site, url: str, listed: list[str], why: str, is_async: bool) -> None:
        with pytest.raises((ValueError, RuntimeError), match=why):
            fetch(url.replace("PORT", str(site.port)), listed, is_async=is_async)
        assert site.asked == []
