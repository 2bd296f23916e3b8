"""Files in Xet: the real hf_xet reads them from its own store on disk, by ranges; without it they are plain bytes.

The hub's own Xet store is reachable from no test: only its protocol is left unseen.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from llmservice_fetch.failed import Unreachable
from llmservice_fetch.hub import XetStore

from tests.support.fetching import TOKEN, Fetcher, end_of, model_files, partial_bytes
from tests.support.forward_proxy import forward_proxy
from tests.support.http_servers import loopback_tls
from tests.support.hub import Hub, Repo, serving
from tests.support.patience import PATIENCE, until

MB = 1_000_000
# In a process of its own, so that its session does not write into this one's folders.
UPLOAD = """
import sys, hf_xet
session = hf_xet.XetSession(hf_xet.XetConfig().with_config("telemetry.enabled", False))
with session.new_upload_commit(endpoint=sys.argv[1]) as commit:
    upload = commit.start_upload_file(sys.argv[2])
print(upload.result().xet_info.hash)
"""


@pytest.fixture(scope="module")
def weights() -> bytes:
    return model_files({"x": 20 * MB})["x"]


@pytest.fixture(scope="module")
def store(weights: bytes, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Where the chunks of the weights are, and the weights' hash there."""
    folder = tmp_path_factory.mktemp("xet")
    (folder / "weights").write_bytes(weights)
    address = f"local://{folder / 'store'}"
    environment = {"HF_XET_CACHE": str(folder / "cache"), "HF_XET_LOG_DEST": "/dev/null"}
    command = [sys.executable, "-c", UPLOAD, address, str(folder / "weights")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return address, done.stdout.strip()


@pytest.fixture
def hub(weights: bytes, store: tuple[str, str]) -> Iterator[Hub]:
    files = {**model_files(), "model.safetensors": weights}
    repo = Repo(files, gated=True, xet={"model.safetensors": store[1]})
    with serving(Hub({"org/tiny": repo}, {TOKEN: {"org/tiny"}}, xet_store=store[0])) as running:
        yield running


@pytest.fixture
def fetcher(hub: Hub, tmp_path: Path) -> Fetcher:
    home = tmp_path / "home"
    home.mkdir()
    return Fetcher(tmp_path, {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HOME": str(home)})


def fetched(fetcher: Fetcher) -> bytes:
    return (fetcher.links / "model" / "model.safetensors").read_bytes()


def refreshes(hub: Hub) -> list[bool]:
    """Whether those who asked for the store's address showed the hub's token."""
    return [asked.authorized for asked in hub.asked if "/xet-read-token/" in asked.path]


def test_a_file_in_xet_comes_by_hf_xet(hub: Hub, fetcher: Fetcher, weights: bytes) -> None:
    ended = fetcher.succeeds("model=hf://org/tiny")
    assert fetched(fetcher) == weights
    assert hub.contents() == [], "no byte of it came from the storage"
    assert refreshes(hub) == [True]
    assert not any(word in ended.words for word in (TOKEN, "xet_ofAnHour"))
    assert list((fetcher.folder / "home").iterdir()) == [], "hf_xet leaves logs and folders where nobody looks"
    assert ended.transfers[-1].percent == 100


async def test_what_came_before_a_kill_is_not_asked_for_again(hub: Hub, fetcher: Fetcher, weights: bytes) -> None:
    """The first half came as plain bytes, as after a failure of Xet; hf_xet brings the rest of it alone."""
    hub.bytes_per_second = 4 * MB
    environment = {**fetcher.environment, "HF_HUB_DISABLE_XET": "1"}
    process = Fetcher(fetcher.folder, environment).start("model=hf://org/tiny")
    await until(lambda: partial_bytes(fetcher.cache) > 4 * MB)
    process.kill()
    end_of(process)
    ended = fetcher.succeeds("model=hf://org/tiny")
    assert "resuming model.safetensors at" in ended.log
    assert fetched(fetcher) == weights
    assert len(hub.contents()) == 1


@pytest.mark.parametrize(
    "xet_store",
    [
        pytest.param("http://127.0.0.1:1", id="a store that does not answer"),
        pytest.param("local:///nowhere/at/all", id="a store without the file"),
        pytest.param("", id="an address that is none"),
    ],
)
def test_what_xet_does_not_bring_comes_as_plain_bytes(
    hub: Hub, fetcher: Fetcher, weights: bytes, xet_store: str
) -> None:
    hub.xet_store = xet_store
    ended = fetcher.succeeds("model=hf://org/tiny")
    assert fetched(fetcher) == weights
    assert len(hub.contents()) == 1
    assert "continues without Xet" in ended.log


def test_a_hub_that_sends_the_token_elsewhere_is_not_followed(hub: Hub, fetcher: Fetcher, weights: bytes) -> None:
    # The same server by another name: what its redirect calls the place to refresh at.
    endpoint, hub.url = hub.url, hub.storage_url
    environment = {**fetcher.environment, "HF_ENDPOINT": endpoint}
    Fetcher(fetcher.folder, environment).succeeds("model=hf://org/tiny")
    assert fetched(fetcher) == weights
    assert refreshes(hub) == []


def test_hf_xet_trusts_the_authority_that_is_named(hub: Hub, fetcher: Fetcher, weights: bytes, tmp_path: Path) -> None:
    tls, authority = loopback_tls()
    with serving(Hub(hub.repos, hub.tokens, xet_store=hub.xet_store), tls=tls) as behind:
        fetcher.with_(HF_ENDPOINT=behind.url, SSL_CERT_FILE=authority).succeeds("model=hf://org/tiny")
    assert fetched(fetcher) == weights
    assert (refreshes(behind), behind.contents()) == ([True], []), "it asked over TLS where the chunks are"


def test_hf_xet_goes_through_the_proxy(hub: Hub, fetcher: Fetcher, weights: bytes) -> None:
    with forward_proxy() as proxy:
        hub.url = hub.url.replace("127.0.0.1", "hub.invalid")
        proxy.names["hub.invalid"] = "127.0.0.1"
        words = {"HTTP_PROXY": proxy.url, "http_proxy": proxy.url, "NO_PROXY": "localhost", "no_proxy": "localhost"}
        fetcher.with_(HF_ENDPOINT=hub.url, **words).succeeds("model=hf://org/tiny")
    assert fetched(fetcher) == weights
    assert (refreshes(hub), hub.contents()) == ([True], []), "nobody else knows where the hub is"


def test_ranges_are_exact(store: tuple[str, str], weights: bytes, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")
    commit = hub.repos["org/tiny"].commit
    opened = XetStore(f"{hub.url}/api/models/org/tiny/xet-read-token/{commit}", {"authorization": f"Bearer {TOKEN}"})
    for start, end in ((0, 1), (5, 70_000), (MB + 1, 3 * MB), (len(weights) - 1, len(weights))):
        assert b"".join(opened.read(store[1], len(weights), start, end)) == weights[start:end]
    with pytest.raises(Unreachable) as caught:
        list(XetStore("http://127.0.0.1:1/signed?by=me", {}).read(store[1], len(weights), 0, 1))
    assert "by=me" not in str(caught.value)
