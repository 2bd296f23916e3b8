"""What a bucket lists and answers is anybody's: it becomes files below one folder, or one of our own refusals."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_fetch import bucket_errors
from llmservice_fetch.buckets import Bucket, files_of
from llmservice_fetch.failed import FetchFailed, HTTPStatusError, Unreachable
from llmservice_fetch.files import Listing, is_inside

from tests.support.bucket_server import Answer, BucketServer, bucket_server, page

PREFIX = "team/tiny"
texts = st.text(max_size=12)
parts = st.one_of(
    st.sampled_from(["..", ".", "", "a", "b", "~", "%2e%2e", "\0", "\n", "\u202e", "é", "\\", "a" * 300]), texts
)
keys = st.one_of(
    st.lists(parts, min_size=1, max_size=5).map(lambda names: f"{PREFIX}/{'/'.join(names)}"),
    st.sampled_from([PREFIX, f"{PREFIX}/", "other/x", "/etc/passwd", ""]),
    texts,
)
sizes = st.one_of(st.integers(-2, 1 << 70), st.sampled_from([0, 1, (1 << 63) - 1, (1 << 64) - 1]))


@pytest.fixture(scope="module")
def server() -> Iterator[BucketServer]:
    with bucket_server() as running:
        yield running


@pytest.fixture(scope="module")
def buckets(server: BucketServer) -> Mapping[str, Bucket]:
    """Of each kind one: each reads the certificates of this machine when it is made."""
    uris = {"s3": f"s3://models/{PREFIX}", "gs": f"gs://models/{PREFIX}", "az": f"az://models/{PREFIX}"}
    made = {kind: Bucket.of(uri, "f", server.environment(kind), lambda _: None) for kind, uri in uris.items()}
    return {kind: bucket for kind, bucket in made.items() if bucket}


def check(listing: Listing) -> None:
    """Names can be made below one folder, each once, and none is a folder of another."""
    paths = [file.path for file in listing.files]
    assert paths == sorted(set(paths))
    for file in listing.files:
        assert is_inside(file.path)
        assert file.path.isprintable() or not any(ord(character) < 32 for character in file.path)
        assert 0 <= file.size <= 1 << 50
        assert len(file.blob) == 40
        assert file.version.isascii()
        assert file.version.isprintable()
    assert not [path for path in paths if any(other.startswith(f"{path}/") for other in paths)]
    assert Listing.from_json(listing.to_json()) == listing


@given(st.lists(st.fixed_dictionaries({"path": keys, "size": sizes, "e_tag": st.one_of(st.none(), texts)}), max_size=4))
def test_names_and_sizes(objects: list[dict[str, Any]]) -> None:
    listed = [item | {"last_modified": "2025"} for item in objects]
    found = None
    with contextlib.suppress(FetchFailed):
        found = files_of(listed, PREFIX, "s3://b")
    if found:
        check(Listing("r", tuple(found)))


@given(
    keys=st.lists(keys, min_size=1, max_size=4), size=st.one_of(sizes.map(str), texts), tag=texts, at=st.integers(0, 99)
)
def test_pages(
    server: BucketServer, buckets: Mapping[str, Bucket], keys: list[str], size: str, tag: str, at: int
) -> None:
    text = page(dict.fromkeys(keys, b""), Size=escape(size), ETag=escape(tag))
    body = text.encode(errors="replace")
    cut = len(body) * at // 99 if at < 50 else len(body)
    server.first = lambda _: Answer(200, body[:cut], {"Content-Type": "application/xml"})
    found = buckets["s3"]
    with contextlib.suppress(FetchFailed, HTTPStatusError, Unreachable):
        listing = found.listing()
        check(listing)
        with found.read(listing, listing.files[0], 0, 1) as (_, chunks):
            list(chunks)


@given(status=st.sampled_from([301, 307, 400, 401, 403, 404, 409, 412, 416, 429, 500, 503]), words=texts, code=texts)
def test_refusals(server: BucketServer, buckets: Mapping[str, Bucket], status: int, words: str, code: str) -> None:
    body = f"<Error><Code>{code}</Code><Message>{words}</Message></Error>".encode(errors="replace")
    server.first = lambda _: Answer(status, body)
    for found in buckets.values():
        with pytest.raises((FetchFailed, HTTPStatusError, Unreachable)) as caught:
            found.listing()
        refused = str(caught.value)
        assert refused.isprintable()
        assert len(refused) < 1000


@given(
    st.one_of(texts, texts.map(lambda text: f"Error performing GET {text} in 1s - status code: 403 Forbidden: {text}"))
)
def test_texts_of_errors(text: str) -> None:
    found = bucket_errors.read(ValueError(text))
    assert found.words.isprintable()
    assert len(found.words) <= 303


def test_what_a_signed_url_holds_is_cut_off() -> None:
    signed = "https://u:secret@weights.blob.core.windows.net/m/a?sv=1&sig=secret%3D"
    found = bucket_errors.read(
        ValueError(
            f"Generic S3 error: Error performing GET {signed} in 1ms - HTTP error: {signed}\n\nDebug source:\n{signed}"
        )
    )
    assert "secret" not in repr(found)
    assert found.url == "https://weights.blob.core.windows.net/m/a"
    found = bucket_errors.read(ValueError(f"status code: 403 Forbidden: <Code>A</Code><Message>see {signed}</Message>"))
    assert found.words == "see https://weights.blob.core.windows.net/m/a"


OBJECTS: dict[str, tuple[dict[str, int], list[str] | None]] = {
    "a folder's marker": ({"/a": 1, "/sub": 0, "/sub/b": 1}, ["a", "sub/b"]),
    "the prefix's own marker": ({"": 0, "/a": 1}, ["a"]),
    "an empty file": ({"/empty.txt": 0}, ["empty.txt"]),
    "a file and a folder of one name": ({"/sub": 1, "/sub/b": 1}, None),
    "larger than anything": ({"/a": 1 << 51}, None),
    "of another prefix": ({"2/a": 1}, None),
    "above the prefix": ({"/../a": 1}, None),
    "a name that reads otherwise than it is": ({"/a\u202eb": 1}, None),
}


@pytest.mark.parametrize("case", OBJECTS)
def test_what_is_a_file(case: str) -> None:
    keys, files = OBJECTS[case]
    objects: list[dict[str, Any]] = [{"path": PREFIX + key, "size": n, "e_tag": '"a"'} for key, n in keys.items()]
    if files is None:
        with pytest.raises(FetchFailed):
            files_of(objects, PREFIX, "s3://b")
    else:
        assert [file.path for file in files_of(objects, PREFIX, "s3://b")] == files


def test_a_bucket_that_never_ends(server: BucketServer) -> None:
    """Each page names another one."""
    one = page({f"{PREFIX}/{number}": b"" for number in range(1000)})
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>more</NextContinuationToken>"
    body = one.replace("<IsTruncated>false</IsTruncated>", more).encode()
    server.first = lambda _: Answer(200, body)
    found = Bucket.of(f"s3://models/{PREFIX}", "spec.model.uri", server.as_s3, lambda _: None)
    assert found is not None
    with pytest.raises(FetchFailed, match="holds more than 50000 objects"):
        found.listing()
