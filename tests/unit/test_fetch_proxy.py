"""Proxies: HTTP_PROXY, HTTPS_PROXY and NO_PROXY hold for the hub's client, for the bytes, and for hf_xet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from llmservice_fetch import http

from tests.support.fetching import TOKEN, Fetcher, model_files
from tests.support.forward_proxy import ForwardProxy, forward_proxy
from tests.support.http_servers import loopback_tls
from tests.support.hub import Hub, Repo, serving


@pytest.fixture
def proxy() -> Iterator[ForwardProxy]:
    with forward_proxy() as running:
        yield running


@pytest.fixture
def repos() -> dict[str, Repo]:
    return {"org/tiny": Repo(model_files(), gated=True)}


def through(proxy: ForwardProxy, **more: str) -> dict[str, str]:
    """An environment whose requests are a proxy's."""
    names = dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"), proxy.url)
    return {**names, "NO_PROXY": "", "no_proxy": "", **more}


def test_the_hub_and_its_storage_are_asked_through_a_proxy(
    proxy: ForwardProxy, repos: dict[str, Repo], tmp_path: Path
) -> None:
    with serving(Hub(repos, {TOKEN: {"org/tiny"}})) as hub:
        Fetcher(tmp_path, through(proxy, HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN)).succeeds("model=hf://org/tiny")
        assert len(proxy.asked) == len(hub.asked), "none goes past the proxy"
    assert any("/storage/" in line for line in proxy.asked)


def test_what_no_proxy_names_is_asked_directly(proxy: ForwardProxy, repos: dict[str, Repo], tmp_path: Path) -> None:
    with serving(Hub(repos, {TOKEN: {"org/tiny"}})) as hub:
        environment = through(proxy, HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN, NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
        Fetcher(tmp_path, environment).succeeds("model=hf://org/tiny")
    # The storage has another name.
    assert proxy.asked
    assert all(line.startswith("GET http://localhost:") for line in proxy.asked), proxy.asked


def test_a_tunnel_shows_the_proxy_no_token(proxy: ForwardProxy, repos: dict[str, Repo], tmp_path: Path) -> None:
    tls, authority = loopback_tls()
    proxy.url = proxy.url.replace("://", "://me:proxyPassword@")
    with serving(Hub(repos, {TOKEN: {"org/tiny"}}), tls=tls) as hub:
        environment = through(proxy, HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN, SSL_CERT_FILE=authority)
        ended = Fetcher(tmp_path, environment).succeeds("model=hf://org/tiny")
    assert {line.split(" ")[0] for line in proxy.asked} == {"CONNECT"}
    assert all("Basic bWU6cHJveHlQYXNzd29yZA==" in head for head in proxy.headers)
    assert not any(TOKEN in head for head in proxy.headers)
    assert "proxyPassword" not in ended.words


@pytest.mark.parametrize(
    ("url", "environment", "proxy"),
    [
        pytest.param("https://h/a", {"HTTPS_PROXY": "http://p:1"}, "http://p:1", id="https"),
        pytest.param("https://h/a", {"HTTPS_PROXY": "p:1"}, "http://p:1", id="without a scheme"),
        pytest.param("https://h/a", {"HTTP_PROXY": "http://p:1"}, None, id="of the other scheme"),
        pytest.param("https://h/a", {"ALL_PROXY": "http://p:1"}, "http://p:1", id="all"),
        pytest.param("https://h/a", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "h"}, None, id="a host"),
        pytest.param("https://h.corp/a", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": ".corp"}, None, id="a domain"),
        pytest.param("https://h/a", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, None, id="everything"),
        pytest.param("https://h:9/a", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "h:8"}, "http://p:1", id="a port"),
    ],
)
def test_which_proxy_an_address_has(
    url: str, environment: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert http.proxy_of(url) == proxy
