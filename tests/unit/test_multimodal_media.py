"""Which media a server fetches for its clients: vLLM's own connector, given what the operator renders."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from llmservice_runtime.flags import flag_table, known_versions

from tests.support.http_servers import threaded
from tests.unit.test_build_template import env, render, server

FLAG = "--allowed-media-domains"
SWITCH = "VLLM_MEDIA_URL_ALLOW_REDIRECTS"


def flags(**multimodal: object) -> list[str]:
    arguments: list[str] = server(render(multimodal=multimodal))["args"]
    return arguments[arguments.index("--") + 1 :]


def domains(given: list[str]) -> list[str]:
    """The values of the flag, as argparse reads them."""
    after = given[given.index(FLAG) + 1 :]
    return after[: next(place for place, token in enumerate(after) if token.startswith("--"))]


@pytest.mark.parametrize("version", known_versions())
def test_every_version_has_the_flag(version: str) -> None:
    assert flag_table(version).by_spelling[FLAG].values == "+"
    assert flag_table(version).by_spelling["--allowed-local-media-path"].values == 1


@pytest.mark.parametrize(
    ("listed", "rendered"),
    [
        pytest.param([], ["spec.multimodal.allowedMediaDomains"], id="nobody"),
        pytest.param(["a.example", "b.example"], ["a.example", "b.example"], id="two"),
    ],
)
def test_domains_are_rendered(listed: list[str], rendered: list[str]) -> None:
    assert domains(flags(allowedMediaDomains=listed)) == rendered


def test_by_default_nobody_is_asked_and_a_star_lifts_that() -> None:
    assert domains(flags()) == domains(flags(allowedMediaDomains=[]))
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


VLLM = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]
WAYS = pytest.mark.parametrize("is_async", [False, True], ids=["at once", "async"])


class TestVllmsOwnConnector:
    """What it does with what is rendered."""

    pytestmark = VLLM

    @WAYS
    def test_a_listed_host_is_asked(self, site: Site, is_async: bool) -> None:
        assert fetch(f"http://127.0.0.1:{site.port}/a", ["127.0.0.1"], is_async=is_async) == b"media"
        assert fetch(f"http://127.0.0.1:{site.port}/a", ["*"], is_async=is_async) == b"media"

    @WAYS
    @pytest.mark.parametrize("listed", [[], ["localhost"], ["27.0.0.1"]], ids=["none", "another", "a part"])
    @pytest.mark.parametrize("address", ["http://127.0.0.1:{}/a", "HTTP://127.0.0.1:{}/a", "http://u:p@127.0.0.1:{}/a"])
    def test_no_other_is(self, site: Site, listed: list[str], address: str, is_async: bool) -> None:
        with pytest.raises(ValueError, match="allowed domains"):
            fetch(address.format(site.port), listed, is_async=is_async)
        assert site.asked == []

    @WAYS
    def test_the_word_for_nobody_is_no_host(self, is_async: bool) -> None:
        with pytest.raises(ValueError, match=r"\['spec.multimodal.allowedMediaDomains'\]"):
            fetch("http://spec.multimodal.allowedMediaDomains/a", [], is_async=is_async)

    @WAYS
    def test_a_listed_host_cannot_send_it_elsewhere(self, site: Site, is_async: bool) -> None:
        """The redirect's own body is what it gets, and that is no picture."""
        assert fetch(f"http://127.0.0.1:{site.port}/away", ["127.0.0.1"], is_async=is_async) == b"media"
        assert site.asked == ["/away"]

    @WAYS
    @pytest.mark.parametrize("listed", [[], ["*"]], ids=["none", "any"])
    def test_files_of_the_pod_stay_closed(self, listed: list[str], is_async: bool) -> None:
        with pytest.raises(RuntimeError, match="allowed-local-media-path"):
            fetch("file:///proc/1/environ", listed, is_async=is_async)

    @WAYS
    def test_what_is_in_the_request_needs_no_host(self, is_async: bool) -> None:
        assert fetch("data:image/png;base64,bWVkaWE=", [], is_async=is_async) == b"bWVkaWE="
