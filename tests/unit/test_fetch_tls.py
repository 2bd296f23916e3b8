"""A hub behind TLS: an authority of one's own is trusted when it is named, and nobody's certificate otherwise."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from llmservice_fetch.failed import FetchFailed
from llmservice_runtime.contract import FailureReason as R

from localcluster import pki
from localcluster.paths import ClusterPaths
from tests.support.fetching import TOKEN, Fetcher, model_files
from tests.support.hub import Hub, Repo, serving


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """Certificates of the local cluster's kind, for 127.0.0.1 and localhost."""
    paths = ClusterPaths(tmp_path / "clone")
    pki.ensure(paths)
    return paths.pki


@pytest.fixture
def hub(authority: Path) -> Iterator[Hub]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority / "apiserver.crt", authority / "apiserver.key")
    with serving(Hub({"org/tiny": Repo(model_files(), gated=True)}, {TOKEN: {"org/tiny"}}), tls=tls) as running:
        yield running


def test_an_authority_that_is_named_is_trusted(hub: Hub, authority: Path, tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path, {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "SSL_CERT_FILE": str(authority / "ca.crt")})
    ended = fetcher.run("model=hf://org/tiny")
    assert ended.code == 0, ended.words


def test_one_that_nobody_named_gets_no_token(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(FetchFailed) as caught:
        Fetcher(tmp_path, {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}).run_here("model=hf://org/tiny", attempts=1)
    assert caught.value.failure.reason is R.MODEL_DOWNLOAD_FAILED
    assert "CERTIFICATE_VERIFY_FAILED" in caught.value.failure.message
    assert "CA settings" in caught.value.failure.remedy
    assert hub.asked == []
