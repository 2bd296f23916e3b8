"""s3://, gs:// and az:// are one implementation: the same stories for each, and each refusal its own reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from llmservice_fetch import buckets
from llmservice_fetch.bucket_stores import Access, Cloud, Identity
from llmservice_fetch.buckets import Bucket
from llmservice_fetch.clouds import CLOUDS
from llmservice_fetch.failed import FetchFailed, HTTPStatusError, Unreachable
from llmservice_fetch.files import Digest
from llmservice_fetch.inspection import inspect
from llmservice_runtime.contract import FailureReason as R
from obstore.store import MemoryStore

from tests.support.bucket_server import Answer, Asked, BucketServer, bucket_server, refusal, tag_of
from tests.support.buckets import AWS_KEYS, AZURE_KEY, SAS, bucket, failure
from tests.support.fetching import Fetcher, model_files
from tests.support.http_servers import loopback_tls

MODEL = model_files()
KINDS = ("s3", "gs", "az")


@pytest.fixture
def server() -> Iterator[BucketServer]:
    with bucket_server() as running:
        for name, content in MODEL.items():
            running.put("models", f"team/tiny/{name}", content)
        running.put("models", "team/tiny2/config.json", b"{}")
        yield running


@pytest.mark.parametrize("scheme", KINDS)
def test_a_folder_of_a_bucket_comes_whole_and_goes_on_where_it_was(
    server: BucketServer, tmp_path: Path, scheme: str
) -> None:
    fetcher = Fetcher(tmp_path, server.environment(scheme))
    fetcher.run_here(f"model={scheme}://models/team/tiny")
    assert {path.name: path.read_bytes() for path in (fetcher.links / "model").iterdir()} == MODEL
    large = MODEL["model.safetensors"]
    (blob,) = (path for path in fetcher.cache.rglob("blobs/*") if path.stat().st_size == len(large))
    with blob.rename(blob.with_name(f"{blob.name}.incomplete")).open("r+b") as partial:
        partial.truncate(100_000)
    server.asked.clear()
    fetcher.run_here(f"model={scheme}://models/team/tiny")
    assert (fetcher.links / "model" / "model.safetensors").read_bytes() == large
    (read,) = (asked for asked in server.asked if asked.method == "GET" and asked.key)
    assert (read.headers["Range"] or read.headers["x-ms-range"]) == f"bytes=100000-{len(large) - 1}"
    assert read.headers["If-Match"].strip('"') == tag_of(large).strip('"')


@pytest.mark.parametrize("scheme", KINDS)
def test_a_model_is_inspected_where_it_lies(server: BucketServer, scheme: str) -> None:
    found = inspect(f"{scheme}://models/team/tiny", server.environment(scheme))
    assert found.failure is None
    assert found.tensors is not None
    weights = [asked for asked in server.asked if asked.key.endswith(".safetensors")]
    assert weights
    assert all(asked.headers["Range"] or asked.headers["x-ms-range"] for asked in weights), "never whole"


@pytest.mark.parametrize("scheme", KINDS)
def test_an_object_that_changes_meanwhile_is_noticed(server: BucketServer, scheme: str) -> None:
    found = bucket(server.environment(scheme), f"{scheme}://models/team/tiny")
    listing = found.listing()
    file = next(file for file in listing.files if file.path == "config.json")
    server.put("models", "team/tiny/config.json", MODEL["config.json"].swapcase())

    def read() -> object:
        with found.read(listing, file, 0, file.size):
            raise AssertionError("it was read")

    reason, message, _ = failure(read)
    assert (reason, "changed during the fetch" in message) == (R.MODEL_DOWNLOAD_FAILED, True)

    def ignores_conditions(asked: Asked) -> Answer | None:
        del asked.headers["If-Match"]
        return None

    server.first = ignores_conditions
    assert failure(read)[:2] == (reason, message), "a server that does not know If-Match"


def test_a_server_without_ranges_sends_everything_from_the_start(server: BucketServer) -> None:
    server.knows_ranges = False
    found = bucket(server.as_s3)
    listing = found.listing()
    file = next(file for file in listing.files if file.path == "config.json")
    with found.read(listing, file, 5, file.size) as (start, chunks):
        assert (start, b"".join(chunks)) == (0, MODEL["config.json"])


def test_a_connection_that_ends_early_is_worth_another_try(server: BucketServer) -> None:
    found = bucket(server.as_s3)
    listing = found.listing()
    file = listing.files[0]
    server.first = lambda asked: Answer(200, b"x" * file.size, {"ETag": file.version}, cut=5) if asked.key else None
    with found.read(listing, file, 0, file.size) as (_, chunks), pytest.raises(Unreachable, match="ended early"):
        list(chunks)
    server.first = lambda _: Answer(200, b"<ListBucketResult>", cut=5)
    for environment in (server.as_s3, server.as_s3 | AWS_KEYS):
        with pytest.raises(Unreachable, match=r"s3://models/team/tiny|/models"):
            bucket(environment).listing()


REFUSALS = [
    pytest.param("s3", AWS_KEYS, 403, "InvalidAccessKeyId", R.MODEL_TOKEN_REFUSED, "spec.model.s3.cred", id="key"),
    pytest.param("s3", AWS_KEYS, 403, "SignatureDoesNotMatch", R.MODEL_TOKEN_REFUSED, "spec.model.s3", id="secret"),
    pytest.param("s3", AWS_KEYS, 400, "ExpiredToken", R.MODEL_TOKEN_REFUSED, "spec.model.s3.cred", id="expired"),
    pytest.param("s3", AWS_KEYS, 403, "RequestTimeTooSkewed", R.MODEL_TOKEN_REFUSED, "clock", id="clock"),
    pytest.param("s3", AWS_KEYS, 403, "AccessDenied", R.MODEL_ACCESS_DENIED, "s3:ListBucket", id="denied"),
    pytest.param("s3", {}, 403, "AccessDenied", R.MODEL_ACCESS_DENIED, "credentialsSecretRef", id="private"),
    pytest.param("s3", {}, 404, "NoSuchBucket", R.MODEL_NOT_FOUND, "spec.model.s3.endpoint", id="bucket"),
    pytest.param("gs", {}, 401, "AuthenticationRequired", R.MODEL_ACCESS_DENIED, "spec.model.gcs", id="gs private"),
    pytest.param("gs", {"GOOGLE_BEARER_TOKEN": "ya29.x"}, 401, "AuthenticationRequired", R.MODEL_TOKEN_REFUSED,
                 "spec.model.gcs.cred", id="gs token"),
    pytest.param("gs", {"GOOGLE_BEARER_TOKEN": "ya29.x"}, 403, "AccessDenied", R.MODEL_ACCESS_DENIED,
                 "storage.objects.list", id="gs denied"),
    pytest.param("gs", {}, 404, "NoSuchBucket", R.MODEL_NOT_FOUND, "spec.model.gcs.endpoint", id="gs bucket"),
    pytest.param("az", AZURE_KEY, 403, "AuthenticationFailed", R.MODEL_TOKEN_REFUSED, "spec.model.azure", id="az key"),
    pytest.param("az", SAS, 403, "AuthenticationFailed", R.MODEL_TOKEN_REFUSED, "spec.model.azure", id="az SAS"),
    pytest.param("az", SAS, 403, "AuthorizationPermissionMismatch", R.MODEL_ACCESS_DENIED, "Blob Data Reader",
                 id="az denied"),
    pytest.param("az", {}, 409, "PublicAccessNotPermitted", R.MODEL_ACCESS_DENIED, "spec.model.azure", id="az none"),
    pytest.param("az", AZURE_KEY, 404, "ContainerNotFound", R.MODEL_NOT_FOUND, "spec.model.azure.endpoint",
                 id="az container"),
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "credentials", "status", "code", "reason", "remedy"), REFUSALS)
def test_refusals_are_told_apart(
    server: BucketServer, scheme: str, credentials: dict[str, str], status: int, code: str, reason: R, remedy: str
) -> None:
    server.first = lambda _: refusal(status, code, "The words of the server.\nRequestId:1-2-3\nTime:2026-01-01")
    found = bucket(server.environment(scheme) | credentials, f"{scheme}://models/team/tiny")
    refused = failure(found.listing)
    assert refused[0] is reason, refused
    assert remedy in refused[2]
    assert "RequestId" not in refused[1], "each message would be another one"
    for secret in credentials.values():
        assert secret not in str(refused)


@pytest.mark.parametrize("scheme", KINDS)
@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_passes_is_asked_again_by_the_caller_and_once_by_obstore(
    server: BucketServer, scheme: str, status: int
) -> None:
    server.first = lambda _: refusal(status, "SlowDown", "Please reduce your request rate.")
    with pytest.raises(HTTPStatusError, match="reduce your request rate") as caught:
        bucket(server.environment(scheme), f"{scheme}://models/team/tiny").listing()
    assert caught.value.is_transient
    assert len(server.asked) == 1


def test_nothing_below_a_prefix(server: BucketServer) -> None:
    for scheme in KINDS:
        refused = failure(bucket(server.environment(scheme), f"{scheme}://models/team/tin").listing)
        assert refused[0] is R.MODEL_NOT_FOUND
        assert "spec.model.uri" in refused[2]


def test_something_that_is_no_bucket(server: BucketServer) -> None:
    for body in (b"<html>Welcome</html>", b"Welcome", b"<ListBucketResult><Contents>", b"\xff\xfe"):
        server.first = lambda _, body=body: Answer(200, body)  # type: ignore[misc]
        for scheme, section in (("s3", "s3"), ("gs", "gcs"), ("az", "azure")):
            refused = failure(bucket(server.environment(scheme), f"{scheme}://models/a").listing)
            assert refused[0] is R.MODEL_NOT_FOUND, refused
            assert f"spec.model.{section}.endpoint" in refused[2]


@pytest.mark.parametrize(
    ("scheme", "section", "name"),
    [("s3", "s3", "S3 server"), ("gs", "gcs", "Google Cloud Storage"), ("az", "azure", "Azure Blob Storage")],
)
def test_what_is_said_of_something_that_is_no_bucket(
    server: BucketServer, scheme: str, section: str, name: str
) -> None:
    server.first = lambda _: Answer(200, b"Welcome")
    found = bucket(server.environment(scheme), f"{scheme}://models/a")
    message = f"{found.access.endpoint} does not list objects like {name}."
    assert failure(found.listing) == (
        R.MODEL_NOT_FOUND, message, f"Check spec.model.uri. Check spec.model.{section}.endpoint."
    )  # fmt: skip


def test_a_container_of_no_account() -> None:
    assert failure(lambda: Bucket.of("az://models/a", "spec.model.uri", {}, lambda _: None)) == (
        R.MODEL_NOT_FOUND,
        "az://models/a does not say in which storage account it is.",
        "Check spec.model.uri. Set spec.model.azure.account.",
    )


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:9/models: Connection refused"):
        bucket({"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}).listing()


MOVED = refusal(301, "PermanentRedirect", "Elsewhere.", x_amz_bucket_region="eu-central-1")
MALFORMED = Answer(400, b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-central-1</Region></Error>")


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        pytest.param(MOVED, ["GET", "HEAD", "GET"], id="a redirect without an address"),
        pytest.param(MALFORMED, ["GET", "GET"], id="a refused signature"),
    ],
)
def test_the_region_that_aws_names_is_asked_instead(server: BucketServer, answer: Answer, asked: list[str]) -> None:
    def moved(request: Asked) -> Answer | None:
        return None if "/eu-central-1/s3" in (request.headers["Authorization"] or "") else answer

    server.first = moved
    found = bucket(server.as_s3 | AWS_KEYS)
    assert len(found.listing().files) == len(MODEL)
    assert found.access.region == "eu-central-1"
    assert [request.method for request in server.asked] == asked


def test_a_region_that_is_wrong_as_well_is_not_asked_for_ever(server: BucketServer) -> None:
    server.first = lambda _: refusal(301, "PermanentRedirect", "Elsewhere.", x_amz_bucket_region="nowhere-1")
    with pytest.raises((FetchFailed, Unreachable, HTTPStatusError)):
        bucket(server.as_s3 | AWS_KEYS).listing()


@pytest.mark.parametrize(
    ("scheme", "credentials", "headers", "verified"),
    [
        pytest.param("s3", AWS_KEYS, {}, True, id="S3"),
        pytest.param("s3", {}, {}, True, id="S3, public"),
        pytest.param("s3", AWS_KEYS, {"x-amz-server-side-encryption": "AES256"}, True, id="S3's own encryption"),
        pytest.param("s3", AWS_KEYS, {"x-amz-server-side-encryption": "aws:kms"}, False, id="S3, KMS"),
        pytest.param("s3", AWS_KEYS, {"x-amz-server-side-encryption-customer-algorithm": "AES256"}, False, id="SSE-C"),
        pytest.param("gs", {}, {"x-goog-hash": "crc32c=n03x6A==,md5=CY9rzUYh03PK3k6DJie09g=="}, True, id="Google"),
        pytest.param("gs", {}, {"x-goog-hash": "crc32c=n03x6A=="}, False, id="Google, composed"),
        pytest.param("gs", {}, {"x-goog-hash": "md5=nonsense"}, False, id="Google, nonsense"),
        pytest.param("az", AZURE_KEY, {}, True, id="Azure"),
        pytest.param("az", SAS, {}, False, id="Azure with a SAS"),
    ],
)  # fmt: skip
def test_what_is_published_as_the_hash(
    server: BucketServer, scheme: str, credentials: dict[str, str], headers: dict[str, str], verified: bool
) -> None:
    server.objects["models"] = {"a/config.json": b"test"}
    server.headers = headers
    found = bucket(server.environment(scheme) | credentials, f"{scheme}://models/a")
    (file,) = found.listing().files
    assert found.digest(file) == (Digest("md5", "098f6bcd4621d373cade4e832627b4f6") if verified else None)


def test_a_further_cloud_is_an_entry_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here with the account in the URI, and a store of obstore that signs nothing."""
    content = MemoryStore()
    content.put("a/b/config.json", b"{}")

    def access(cloud: Cloud, place: str, _: Mapping[str, str]) -> Access:
        account, vault = place.split("/")
        return Access(cloud, vault, "", Identity.GIVEN, {}, account=account, signs=True)

    vaults = Cloud(
        scheme="vault",
        wording=CLOUDS["s3"].wording,
        access=access,
        open=lambda *_: content,
        address=lambda access, path: f"https://{access.account}.vault.example/{access.bucket}/{path}",
        digest=lambda *_: None,
        depth=2,
    )
    monkeypatch.setattr(buckets, "CLOUDS", {**CLOUDS, vaults.scheme: vaults})
    found = bucket({}, "vault://weights/models/a/b")
    assert (found.uri, found.access.bucket, found.prefix) == ("vault://weights/models/a/b", "models", "a/b")
    assert found.access.address("a/b") == "https://weights.vault.example/models/a/b"
    listing = found.listing()
    (file,) = listing.files
    with found.read(listing, file, 0, file.size) as (start, chunks):
        assert (file.path, start, b"".join(chunks)) == ("config.json", 0, b"{}")
    assert found.digest(file) is None


def test_an_authority_that_is_named_is_trusted_and_no_other(tmp_path: Path) -> None:
    """In processes of their own: certificates are read once."""
    tls, authority = loopback_tls()
    files = {f"tiny/{name}": content for name, content in MODEL.items()}
    with bucket_server({"models": files}, tls=tls) as server:
        trusted = Fetcher(tmp_path, server.as_s3 | AWS_KEYS | {"SSL_CERT_FILE": authority})
        trusted.succeeds("model=s3://models/tiny")
        server.asked.clear()
        with pytest.raises(Unreachable, match=r"not trusted \(UnknownIssuer\)"):
            bucket(server.as_s3 | AWS_KEYS, "s3://models/tiny").listing()
        assert server.asked == []


def test_proxies_are_used_as_the_variables_say(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    far = {"AWS_ENDPOINT_URL_S3": "http://s3.example"}
    found = bucket(far)
    listing = found.listing()
    assert len(listing.files) == len(MODEL)
    assert found.digest(listing.files[0]) is not None, "by the same way"
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert len(bucket(server.as_s3).listing().files) == len(MODEL), "NO_PROXY"


def test_caches_of_earlier_versions_are_found() -> None:
    """The folder and the revision are those that they always were."""
    own = bucket({"AWS_ENDPOINT_URL_S3": "https://minio:9000/"})
    assert own.folder == "s3/models--77657453d090"
    assert bucket({}, "s3://my.models").folder == "s3/my.models--6e340b9cffb3"
    with bucket_server({"models": {"a/config.json": b"{}", "a/x/y.bin": b"123", "a/": b"", "a/x/": b""}}) as server:
        listing = bucket(server.as_s3, "s3://models/a").listing()
    assert listing.revision == "324033680b55b04d9b63236e724c9aa9446505e2"
    assert [file.blob[:8] for file in listing.files] == ["ee0e5228", "ced643bd"]
