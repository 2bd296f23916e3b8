"""Proxies: HTTP_PROXY, HTTPS_PROXY and NO_PROXY hold for the hub's client, for the bytes, and for hf_xet."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from llmservice_fetch.failed import Unreachable
from llmservice_fetch.http import http_request
from llmservice_fetch.proxies import proxy_of

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


NO_PROXY = (
    ("https://h.corp/a", "*.corp", None),
    ("https://a.h.corp/a", "x, *.corp", None),
    ("https://hcorp/a", "*.corp", "http://p:1"),
    ("https://H.Corp./a", "*.CORP", None),
    ("https://10.1.2.3/a", "10.0.0.0/8", None),
    ("https://10.1.2.3:8443/a", "hub, 10.0.0.0/8", None),
    ("https://10.1.2.3/a", "10.1.2.9/24", None),
    ("https://11.1.2.3/a", "10.0.0.0/8", "http://p:1"),
    ("https://10.1.2.3/a", "10.0.0.0/99", "http://p:1"),
    ("https://10.hub/a", "10.0.0.0/8", "http://p:1"),
    ("https://10.1.2.3/a", "10.1.2.3", None),
    ("https://[fd00::1]/a", "fd00::/8", None),
    ("https://[fd00::1]:8443/a", "[fd00::1]", None),
    ("https://[fd00::1]/a", "fd00:0::1", None),
    ("https://[fd00::1]/a", "10.0.0.0/8", "http://p:1"),
    ("https://h:8/a", "h:8", None),
    ("https://h/a", "a b,/,.,*.,[,]", "http://p:1"),
)


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
        *(
            pytest.param(url, {"HTTPS_PROXY": "http://p:1", "NO_PROXY": given}, proxy, id=f"{given} {url}")
            for url, given, proxy in NO_PROXY
        ),
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
    assert proxy_of(url) == proxy


USER = "me:proxyPassword@"
INVALID = ("http://[bad", f"http://{USER}p:port", f"ftp://{USER}p:1", f"http://{USER}p q:1")


@pytest.mark.parametrize(("name", "value"), [*(("HTTP_PROXY", value) for value in INVALID), ("ALL_PROXY", INVALID[1])])
def test_an_invalid_proxy_is_named_without_its_password(name: str, value: str, tmp_path: Path) -> None:
    unset = dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"), "")
    environment = {**unset, "HF_ENDPOINT": "http://hub.corp.example", name: value, name.lower(): value}
    command = (sys.executable, "-c", INVALID_PROXY)
    environment = {**os.environ, **environment, "HOME": str(tmp_path)}
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert ended.stdout.count(f"Unreachable: {name} ") == 2, ended.stdout + ended.stderr
    assert "proxyPassword" not in ended.stdout + ended.stderr


INVALID_PROXY = """
import os
from llmservice_fetch import failed, origins
from llmservice_fetch.http import http_request

def bytes_():
    with http_request("http://hub.corp.example/a", {}, timeout=5):
        pass

for ask in (bytes_, lambda: origins.origin_of("hf://org/tiny", "", os.environ, print).listing()):
    try:
        ask()
    except failed.Unreachable as error:
        print("Unreachable:", str(error).partition(": ")[2])
"""


def test_a_password_in_utf_8_reaches_the_proxy(proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, proxy.url.replace("://", "://u:p%E2%82%AC@"))
    with contextlib.suppress(Unreachable), http_request("http://hub.corp.example:9/a", {}, timeout=5):
        pass
    assert any("Basic dTpw4oKs" in head for head in proxy.headers)


# The hub's client, the bytes' client, hf_xet and obstore, as a fetch uses them: nothing listens where they go.
CLIENTS = """
import contextlib, os, sys
import obstore
from llmservice_fetch import buckets, origins
from llmservice_fetch.http import http_request
from llmservice_fetch.hub import XetStore

def bytes_(url):
    with http_request(url, {}, timeout=5):
        pass

def hub(url):
    os.environ["HF_ENDPOINT"] = url
    origins.origin_of("hf://org/tiny", "", os.environ, print).listing()

def bucket(url):
    access = origins.origin_of("s3://b/p", "", {"AWS_ENDPOINT_URL_S3": url}, print).access
    obstore.get(access.store(5), "k")

def store(url):
    list(XetStore(url, {}).read("0" * 64, 1, 0, 1))

def head(url):
    buckets.head(url, 5)

clients = {"head": head, "bytes": bytes_, "hub": hub, "bucket": bucket, "xet": store}
origins.origin_of("s3://b/p", "", {}, print)
for name, ask in clients.items():
    for host in sys.argv[1:]:
        with contextlib.suppress(Exception):
            ask(f"http://{host}:9/{name}")
"""


def test_every_client_reads_no_proxy_alike(proxy: ForwardProxy, tmp_path: Path) -> None:
    excepted = "127.0.0.0/8, *.corp.example,[::1],fd00::/8"
    hosts = ("127.0.0.1", "hub.corp.example", "[::1]", "[fd00::1]", "other.example")
    command = (sys.executable, "-c", CLIENTS, *hosts)
    environment = {**os.environ, **through(proxy, NO_PROXY=excepted, no_proxy=excepted, HOME=str(tmp_path))}
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    asked = {tuple(line.partition("http://")[2].split("/")[:2]) for line in proxy.asked}
    assert asked == {("other.example:9", name) for name in ("head", "bytes", "hub", "bucket", "xet")}, ended.stderr
