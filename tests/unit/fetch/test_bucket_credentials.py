"""Who asks a bucket: credentials in the order of the clouds' own programs, never said and never taken elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from llmservice_fetch.bucket_stores import Identity
from llmservice_fetch.buckets import Bucket
from llmservice_fetch.failed import FetchFailed, HTTPStatusError, Unreachable
from llmservice_fetch.files import Digest
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.redact import Redactor

from tests.support.bucket_server import Answer, Asked, BucketServer, bucket_server
from tests.support.buckets import AWS_KEYS, AZURE_KEY, SAS, bucket, failure
from tests.support.buckets import google_key as made_key

KINDS = ("s3", "gs", "az")
FILES = {"team/tiny/config.json": b"{}"}


@pytest.fixture
def server() -> Iterator[BucketServer]:
    with bucket_server({"models": dict(FILES)}) as running:
        yield running


@pytest.fixture(scope="module")
def google_key() -> str:
    return made_key()


def test_nobody(server: BucketServer) -> None:
    for scheme in KINDS:
        bucket(server.environment(scheme), f"{scheme}://models/team/tiny").listing()
    assert not [asked for asked in server.asked if asked.headers["Authorization"]]


def test_keys_of_aws_with_the_line_break_of_a_file(server: BucketServer) -> None:
    bucket(server.as_s3 | {name: f"{value}\n" for name, value in AWS_KEYS.items()}).listing()
    assert "Credential=AKIATHEKEY/" in server.asked[0].headers["Authorization"]


def test_a_service_account_whose_key_is_no_file(server: BucketServer, google_key: str) -> None:
    bucket(server.as_gcs | {"GOOGLE_SERVICE_ACCOUNT_KEY": google_key}, "gs://models/team/tiny").listing()
    assert server.asked[0].headers["Authorization"].startswith("Bearer ey")


def test_a_service_account_in_a_file(server: BucketServer, google_key: str, tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text(google_key)
    named = {"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "key.json")}
    bucket(server.as_gcs | named, "gs://models/team/tiny").listing()
    assert server.asked[0].headers["Authorization"].startswith("Bearer ey")


def test_a_key_and_a_signature_of_azure(server: BucketServer) -> None:
    bucket(server.as_azure | AZURE_KEY, "az://models/team/tiny").listing()
    assert server.asked[0].headers["Authorization"].startswith("SharedKey weights:")
    bucket(server.as_azure | SAS, "az://models/team/tiny").listing()
    assert server.asked[1].query["sig"] == ["c2lnbmF0dXJl/of+azure="]


@pytest.mark.parametrize(
    ("scheme", "credentials"),
    [
        ("gs", {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"client_email": "a"}'}),
        ("gs", {"GOOGLE_SERVICE_ACCOUNT_KEY": "the-private-key"}),
        ("gs", {"GOOGLE_APPLICATION_CREDENTIALS": "/no/such/key.json"}),
        ("az", {"AZURE_STORAGE_ACCOUNT_KEY": "not base64!"}),
        ("s3", {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:1/r",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/no/such/token"}),
    ],
)  # fmt: skip
def test_malformed_ones(server: BucketServer, scheme: str, credentials: dict[str, str]) -> None:
    refused = failure(bucket(server.environment(scheme) | credentials, f"{scheme}://models/team/tiny").listing)
    assert refused[0] is R.MODEL_TOKEN_REFUSED, refused
    assert "the-private-key" not in str(refused)


@pytest.mark.parametrize(("scheme", "service"), [("s3", "AWS_METADATA_ENDPOINT"), ("az", "AZURE_MSI_ENDPOINT")])
def test_a_machine_without_a_role_asks_without_credentials(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch, scheme: str, service: str
) -> None:
    """Its metadata service is asked once."""
    found = bucket(server.environment(scheme), f"{scheme}://models/team/tiny")
    found.access.identity = Identity.MACHINE
    monkeypatch.setenv(service, "http://127.0.0.1:9")
    assert len(found.listing().files) == len(FILES)
    assert not server.asked[0].headers["Authorization"]


def test_a_role_of_the_machine_that_worked_is_not_given_up(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next token is worth another try, and not a request without one."""
    token = {"access_token": "of-the-machine", "resource": "", "token_type": "Bearer"}
    past = dict.fromkeys(("expires_on", "expires_in", "not_before"), "1")
    served = [Answer(200, json.dumps(token | past).encode())]

    def metadata(asked: Asked) -> Answer | None:
        if asked.path != "/msi":
            return None
        return served.pop() if served else Answer(503, b"later")

    server.first = metadata
    monkeypatch.setenv("AZURE_MSI_ENDPOINT", f"{server.url}/msi")
    found = bucket(server.as_azure, "az://models/team/tiny")
    found.access.identity = Identity.MACHINE
    found.listing()
    assert server.asked[-1].headers["Authorization"] == "Bearer of-the-machine"
    with pytest.raises(HTTPStatusError, match="503"):
        found.listing()
    assert found.access.identity is Identity.MACHINE


def test_a_key_of_google_signs_without_anybodys_help(server: BucketServer, google_key: str) -> None:
    server.objects["models"] = {"a/config.json": b"test"}
    server.headers = {"x-goog-hash": "md5=CY9rzUYh03PK3k6DJie09g=="}
    found = bucket(server.as_gcs | {"GOOGLE_SERVICE_ACCOUNT_KEY": google_key}, "gs://models/a")
    (file,) = found.listing().files
    assert found.digest(file) == Digest("md5", "098f6bcd4621d373cade4e832627b4f6")
    assert "X-Goog-Signature" in server.asked[-1].query


@pytest.mark.parametrize(
    ("scheme", "credentials"),
    [("s3", AWS_KEYS), ("gs", {"GOOGLE_BEARER_TOKEN": "ya29.of-somebody"}), ("az", AZURE_KEY)],
)
def test_a_redirect_to_another_server_takes_no_proof_along(
    server: BucketServer, scheme: str, credentials: dict[str, str]
) -> None:
    with bucket_server() as other:
        server.first = lambda asked: Answer(307, headers={"Location": f"{other.url}/elsewhere"})
        with pytest.raises((FetchFailed, HTTPStatusError, Unreachable)):
            bucket(server.environment(scheme) | credentials, f"{scheme}://models/a").listing()
    assert server.asked[0].headers["Authorization"]
    assert [asked.headers["Authorization"] for asked in other.asked] == [None]


@pytest.mark.parametrize(
    "given",
    [{"AWS_CONTAINER_AUTHORIZATION_TOKEN": "the-pods-token"}, {}],
    ids=["a token that is no file", "no token"],
)
def test_a_pod_identity_that_obstore_would_pass_over(server: BucketServer, given: dict[str, str]) -> None:
    """It would ask the machine for its role instead, silently."""
    role = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:9/role"}
    refused = failure(lambda: bucket(server.as_s3 | role | given))
    assert refused[0] is R.MODEL_TOKEN_REFUSED
    assert "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE" in refused[1]
    assert "the-pods-token" not in str(refused)


def test_what_must_not_be_said_is_known(google_key: str) -> None:
    redactor = Redactor({})
    for uri, environment in (
        ("s3://models/a", AWS_KEYS | {"AWS_SESSION_TOKEN": "the-session-token"}),
        ("gs://models/a", {"GOOGLE_SERVICE_ACCOUNT_KEY": google_key}),
        ("az://models/a", AZURE_KEY | {"AZURE_STORAGE_ACCOUNT_NAME": "weights"}),
        ("az://models/a", SAS | {"AZURE_STORAGE_ACCOUNT_NAME": "weights"}),
    ):
        Bucket.of(uri, "spec.model.uri", environment, redactor.hide)
    private = json.loads(google_key)["private_key"].splitlines()[3]
    signature = "c2lnbmF0dXJl/of+azure="
    secrets = ["the-secret-of-aws", "the-session-token", private, AZURE_KEY["AZURE_STORAGE_ACCOUNT_KEY"], signature]
    assert redactor.clean(" ".join(secrets)) == " ".join(["***"] * len(secrets))
