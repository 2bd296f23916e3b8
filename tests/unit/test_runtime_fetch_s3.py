"""s3:// against a real S3 server: whole, resumed, verified, and only what was listed; each refusal its own reason."""

from __future__ import annotations

import datetime as dt
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from llmservice_fetch.buckets import Bucket
from llmservice_fetch.failed import FetchFailed
from llmservice_runtime.contract import FailureReason as R

from localcluster import pki
from localcluster.paths import ClusterPaths
from tests.support.fetching import Fetcher, end_of, model_files, partial_bytes, until
from tests.support.object_store import ROOT, ObjectStore, object_store
from tests.support.s3_sign import Credentials, signed

MB = 1_000_000
SHARD = model_files({"x": 12 * MB})["x"]
RESPONSE = (
    '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
    "<AssumeRoleWithWebIdentityResult><Credentials>{}</Credentials></AssumeRoleWithWebIdentityResult>"
    "</AssumeRoleWithWebIdentityResponse>"
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("s3")) as running:
        running.make_bucket("models")
        for name, content in model_files().items():
            running.put("models", f"team a/tiny+1/{name}", content)
        running.put("models", "team a/tiny+10/config.json", b"{}")
        running.put_in_parts("models", "parts/model.safetensors", SHARD[: 6 * MB], SHARD[6 * MB :])
        running.put("models", "parts/config.json", b'{"num_attention_heads": 4}')
        running.put("models", "broken/config.json", b'{"num_attention_heads": 4}')
        running.put("models", "broken/model.safetensors", SHARD[:MB])
        yield running


@pytest.fixture
def fetcher(store: ObjectStore, tmp_path: Path) -> Fetcher:
    return Fetcher(tmp_path, store.environment)


def test_a_folder_of_a_bucket_comes_whole(fetcher: Fetcher) -> None:
    ended = fetcher.run("model=s3://models/team a/tiny+1")
    assert ended.code == 0, ended.words
    assert {path.name: path.read_bytes() for path in (fetcher.links / "model").iterdir()} == model_files()
    assert ROOT.secret_key not in ended.words
    assert ROOT.access_key not in ended.words
    again = fetcher.run("model=s3://models/team a/tiny+1/")
    assert "files to fetch" not in again.log


async def test_a_killed_fetch_goes_on_where_it_was(fetcher: Fetcher) -> None:
    fetcher.run("model=s3://models/parts")
    (blob,) = (path for path in fetcher.cache.rglob("blobs/*") if path.stat().st_size == len(SHARD))
    # A kill leaves a file like this; that a killed process does leave one is seen with the hub, which can be slow.
    blob.rename(blob.with_name(f"{blob.name}.incomplete"))
    with blob.with_name(f"{blob.name}.incomplete").open("r+b") as partial:
        partial.truncate(5 * MB)
    ended = fetcher.run("model=s3://models/parts")
    assert ended.code == 0, ended.words
    assert "resuming model.safetensors at 42%" in ended.log
    assert (fetcher.links / "model" / "model.safetensors").read_bytes() == SHARD
    assert min(transfer.bytes_done for transfer in ended.transfers[1:]) >= 5 * MB


async def test_two_at_once_fetch_once(fetcher: Fetcher) -> None:
    processes = [fetcher.start("model=s3://models/parts") for _ in range(3)]
    await until(lambda: all(process.poll() is not None for process in processes))
    ends = [end_of(process) for process in processes]
    assert [ended.code for ended in ends] == [0, 0, 0], [ended.words for ended in ends]
    assert sum("1 files to fetch" in ended.log for ended in ends) == 1
    assert partial_bytes(fetcher.cache) == 0


def test_an_object_that_came_wrong_is_fetched_anew(fetcher: Fetcher) -> None:
    fetcher.run("model=s3://models/team a/tiny+1")
    content = model_files()["model.safetensors"]
    (blob,) = (path for path in fetcher.cache.rglob("blobs/*") if path.stat().st_size == len(content))
    blob.unlink()
    blob.with_name(f"{blob.name}.incomplete").write_bytes(b"x" * 1000)
    ended = fetcher.run("model=s3://models/team a/tiny+1")
    assert ended.code == 0, ended.words
    assert "has another hash than published" in ended.log
    assert (fetcher.links / "model" / "model.safetensors").read_bytes() == content


def test_a_shard_that_was_uploaded_broken_is_named(fetcher: Fetcher) -> None:
    failure = fetcher.run("model=s3://models/broken").failure
    assert failure is not None
    assert failure.reason is R.MODEL_CORRUPT
    assert "model.safetensors is damaged" in failure.message


def test_an_object_that_changes_meanwhile_is_not_mixed_with_its_predecessor(
    store: ObjectStore, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("models", "moving/config.json", b"{}")
    store.put("models", "moving/model.safetensors", model_files()["model.safetensors"])
    listing = Bucket.listing

    def changed_after(bucket: Bucket) -> object:
        listed = listing(bucket)
        store.put("models", "moving/model.safetensors", model_files(weights={"y": 300_001})["y"])
        return listed

    monkeypatch.setattr(Bucket, "listing", changed_after)
    with pytest.raises(FetchFailed) as caught:
        fetcher.run_here("model=s3://models/moving")
    assert caught.value.failure.reason is R.MODEL_DOWNLOAD_FAILED
    assert "changed during the fetch" in caught.value.failure.message


@pytest.mark.parametrize(
    ("uri", "environment", "reason", "remedy"),
    [
        pytest.param("s3://none/tiny", {}, R.MODEL_NOT_FOUND, "spec.model.s3.endpoint", id="no such bucket"),
        pytest.param("s3://models/tin", {}, R.MODEL_NOT_FOUND, "spec.model.uri", id="nothing below the prefix"),
        pytest.param("s3://models/parts", {"AWS_SECRET_ACCESS_KEY": "of-somebody-else"}, R.MODEL_TOKEN_REFUSED,
                     "credentialsSecretRef", id="wrong secret"),
        pytest.param("s3://models/parts", {"AWS_ACCESS_KEY_ID": "AKIANOBODY"}, R.MODEL_TOKEN_REFUSED,
                     "credentialsSecretRef", id="unknown key"),
        pytest.param("s3://models/parts", {"AWS_ACCESS_KEY_ID": ""}, R.MODEL_ACCESS_DENIED, "credentialsSecretRef",
                     id="no credentials"),
    ],
)  # fmt: skip
def test_refusals_are_told_apart(
    fetcher: Fetcher, uri: str, environment: dict[str, str], reason: R, remedy: str
) -> None:
    ended = fetcher.with_(**environment).run(f"model={uri}")
    assert ended.code == 1
    assert ended.failure is not None
    assert ended.failure.reason is reason, ended.failure
    assert remedy in ended.failure.remedy
    for secret in (*environment.values(), ROOT.secret_key):
        assert not secret or secret not in ended.words


def test_a_server_that_is_not_there(fetcher: Fetcher) -> None:
    with pytest.raises(FetchFailed) as caught:
        fetcher.with_(AWS_ENDPOINT_URL_S3="http://127.0.0.1:9").run_here("model=s3://models/parts")
    assert caught.value.failure.reason is R.MODEL_DOWNLOAD_FAILED
    assert "3 times in a row" in caught.value.failure.message


def test_the_signature_is_the_one_of_the_documentation() -> None:
    """Amazon's own example: Signature Calculations for the Authorization Header, GET Object."""
    credentials = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    url = "https://examplebucket.s3.amazonaws.com/?lifecycle"
    headers = signed("GET", url, credentials, "us-east-1", dt.datetime(2013, 5, 24, tzinfo=dt.UTC))
    assert headers["authorization"].endswith("fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543")


@contextmanager
def role(tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """What a pod's identity agent, or a token service, answers: the store's own keys, for an hour."""
    ends = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)).isoformat()
    keys = {"AccessKeyId": ROOT.access_key, "SecretAccessKey": ROOT.secret_key, "Expiration": ends}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/role") and self.headers["Authorization"] == "the-pods-own-token":
                body = json.dumps({**keys, "Token": ""})
            elif "WebIdentityToken=the-pods-own-token" in self.path and "RoleArn=arn%3Amodels" in self.path and tls:
                fields = "".join(f"<{name}>{value}</{name}>" for name, value in {**keys, "SessionToken": ""}.items())
                body = RESPONSE.format(fields)
            else:
                self.send_error(403)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_GET  # noqa: N815 - the standard library's name

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("kind", ["pod identity", "web identity", "nobody's", "token service over http"])
def test_a_role_stands_for_keys(store: ObjectStore, tmp_path: Path, kind: str) -> None:
    token = tmp_path / "token"
    token.write_text("of-somebody-else" if kind == "nobody's" else "the-pods-own-token")
    paths = ClusterPaths(tmp_path / "clone")
    pki.ensure(paths)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(paths.pki / "apiserver.crt", paths.pki / "apiserver.key")
    with role(tls if kind == "web identity" else None) as url:
        ways = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{url}/role",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
        }
        if kind in ("web identity", "token service over http"):
            ways = {
                "AWS_ROLE_ARN": "arn:models",
                "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
                "AWS_ENDPOINT_URL_STS": url,
            }
        trust = {"SSL_CERT_FILE": str(paths.pki / "ca.crt")}
        place = {"AWS_ENDPOINT_URL_S3": store.url, "AWS_REGION": "us-east-1"}
        ended = Fetcher(tmp_path, {**place, **trust, **ways}).run("model=s3://models/parts")
    if kind in ("pod identity", "web identity"):
        assert ended.code == 0, ended.words
    else:
        assert ended.failure is not None
        assert ended.failure.reason is R.MODEL_TOKEN_REFUSED
    for secret in (ROOT.secret_key, token.read_text()):
        assert secret not in ended.words


def test_a_listing_is_a_revision(store: ObjectStore, fetcher: Fetcher) -> None:
    store.put("models", "growing/config.json", b"{}")
    store.put("models", "growing/model.safetensors", model_files()["model.safetensors"])
    first = fetcher.run("model=s3://models/growing").paths["model"]
    store.put("models", "growing/config.json", b'{"hidden_size": 8}')
    second = fetcher.run("model=s3://models/growing").paths["model"]
    assert first != second
    assert [(path / "config.json").read_bytes() for path in (first, second)] == [b"{}", b'{"hidden_size": 8}']
