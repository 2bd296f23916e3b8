"""s3:// against a real S3 server: whole, resumed, verified, and only what was listed; each refusal its own reason."""

from __future__ import annotations

import datetime as dt
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from llmservice_runtime.contract import FailureReason as R

from tests.support.fetching import Fetcher, model_files
from tests.support.http_servers import loopback_tls, threaded
from tests.support.object_store import ROOT, ObjectStore, object_store

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
        running.put("models", "parts/model.safetensors", SHARD, in_parts=True)
        running.put("models", "parts/config.json", b'{"num_attention_heads": 4}')
        running.put("models", "broken/config.json", b'{"num_attention_heads": 4}')
        running.put("models", "broken/model.safetensors", SHARD[:MB])
        yield running


@pytest.fixture
def fetcher(store: ObjectStore, tmp_path: Path) -> Fetcher:
    return Fetcher(tmp_path, store.environment)


def test_a_folder_of_a_bucket_comes_whole(fetcher: Fetcher) -> None:
    ended = fetcher.succeeds("model=s3://models/team a/tiny+1")
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
    ended = fetcher.succeeds("model=s3://models/parts")
    assert "resuming model.safetensors at 42%" in ended.log
    assert (fetcher.links / "model" / "model.safetensors").read_bytes() == SHARD
    assert min(transfer.bytes_done for transfer in ended.transfers[1:]) >= 5 * MB


def test_an_object_that_came_wrong_is_fetched_anew(fetcher: Fetcher) -> None:
    fetcher.run("model=s3://models/team a/tiny+1")
    content = model_files()["model.safetensors"]
    (blob,) = (path for path in fetcher.cache.rglob("blobs/*") if path.stat().st_size == len(content))
    blob.unlink()
    blob.with_name(f"{blob.name}.incomplete").write_bytes(b"x" * 1000)
    ended = fetcher.succeeds("model=s3://models/team a/tiny+1")
    assert "has another hash than published" in ended.log
    assert (fetcher.links / "model" / "model.safetensors").read_bytes() == content


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

    with threaded(Handler, tls=tls) as port:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"


@pytest.mark.parametrize("kind", ["pod identity", "web identity", "nobody's", "token service over http"])
def test_a_role_stands_for_keys(store: ObjectStore, tmp_path: Path, kind: str) -> None:
    token = tmp_path / "token"
    token.write_text("of-somebody-else" if kind == "nobody's" else "the-pods-own-token")
    tls, authority = loopback_tls()
    with role(tls if kind == "web identity" else None) as url:
        pod = (
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{url}/role"),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token)),
        )
        web = ("AWS_ROLE_ARN", "arn:models"), ("AWS_WEB_IDENTITY_TOKEN_FILE", str(token)), ("AWS_ENDPOINT_URL_STS", url)
        ways = dict(web if kind in ("web identity", "token service over http") else pod)
        trust = {"SSL_CERT_FILE": authority}
        place = {"AWS_ENDPOINT_URL_S3": store.url, "AWS_REGION": "us-east-1"}
        ended = Fetcher(tmp_path, {**place, **trust, **ways}).run("model=s3://models/parts")
    if kind in ("pod identity", "web identity"):
        assert ended.code == 0, ended.words
    else:
        assert ended.failure is not None
        assert ended.failure.reason is R.MODEL_TOKEN_REFUSED
    for secret in (ROOT.secret_key, token.read_text()):
        assert secret not in ended.words
