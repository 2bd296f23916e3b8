"""Redirects: credentials stay with the server that they were given to, and no redirect leaves HTTP."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from llmservice_fetch import http
from llmservice_fetch.failed import HTTPStatusError, Unreachable
from llmservice_fetch.http import http_request

from tests.support.http_servers import Reply, site

CREDENTIALS = {
    "Authorization": "Bearer t",
    "authorization": "Bearer t",
    "Proxy-Authorization": "Basic t",
    "Cookie": "session=t",
    "x-amz-security-token": "t",
    "X-Amz-Content-Sha256": "t",
    "X-aws-ec2-metadata-token": "t",
    "X-Auth-Token": "t",
}
PLAIN = {"Accept-Encoding": "identity", "User-Agent": "llmservice", "Range": "bytes=0-1", "If-Match": '"e"'}


def to(target: str, status: int = 302) -> Callable[[str], Reply]:
    return lambda _: Reply(status, {"Location": target})


def get(url: str, *, method: str = "GET") -> int:
    with http_request(url, {**PLAIN, **CREDENTIALS}, method=method, timeout=5) as answer:
        answer.read()
        return answer.status


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_credentials_stay_with_their_own_server(status: int) -> None:
    with site() as hub, site() as storage:
        hub.answer = to(f"{storage.url}/file", status)
        assert get(f"{hub.url}/a") == 200
    ((_, sent),), ((_, passed),) = hub.seen, storage.seen
    assert {name.lower() for name in CREDENTIALS} <= sent.keys()
    assert not {name.lower() for name in CREDENTIALS} & passed.keys(), "the same address, another port"
    assert {name.lower(): value for name, value in PLAIN.items()}.items() <= passed.items()


def test_a_server_may_redirect_to_itself() -> None:
    with site() as hub:
        hub.answer = to(f"{hub.url}/again")
        with pytest.raises(Unreachable, match="more than 5 redirects"):
            get(f"{hub.url}/a")
    assert len(hub.seen) == 5
    assert all(sent["cookie"] == "session=t" for _, sent in hub.seen)


@pytest.mark.parametrize(
    "target",
    ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:text/plain,x", "https://", "http://user:word@127.0.0.1/x"],
)
def test_a_redirect_elsewhere_is_refused(target: str) -> None:
    with site() as hub:
        hub.answer = to(target)
        with pytest.raises(HTTPStatusError) as caught:
            get(f"{hub.url}/a")
    assert not caught.value.is_transient, "another try would not help"
    assert "word" not in str(caught.value)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:text/plain,x"])
def test_an_address_that_is_not_http_is_refused(url: str) -> None:
    with pytest.raises(HTTPStatusError):
        get(url)


def test_only_reading_requests_are_sent_again_elsewhere() -> None:
    with site() as machine, site() as other:
        machine.answer = to(other.url)
        assert get(machine.url, method="PUT") == 302
    assert other.seen == []


ORIGINS = [
    pytest.param("https://h/a", "https://h/b", True, id="another path"),
    pytest.param("https://h/a", "/b", True, id="relative"),
    pytest.param("https://h/a", "https://h:443/b", True, id="the port that it has anyway"),
    pytest.param("https://H/a", "https://h/b", True, id="another spelling"),
    pytest.param("http://h/a", "https://h/b", False, id="another scheme"),
    pytest.param("https://h/a", "https://h:8443/b", False, id="another port"),
    pytest.param("https://h/a", "https://h.evil/b", False, id="another host"),
    pytest.param("https://h/a", "//evil/b", False, id="another host, relative"),
]


@pytest.mark.parametrize(("url", "target", "kept"), ORIGINS)
def test_an_origin_is_scheme_host_and_port(url: str, target: str, kept: bool) -> None:
    _, headers = http.redirected(url, target, {**PLAIN, **CREDENTIALS}, 302)
    assert headers == ({**PLAIN, **CREDENTIALS} if kept else PLAIN)


def test_nothing_that_came_by_https_goes_on_by_http() -> None:
    with pytest.raises(HTTPStatusError, match="http://h/b"):
        http.redirected("https://h/a", "http://h/b", {}, 302)
