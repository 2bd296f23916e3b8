"""huggingface_hub as it is used here: the token goes to its hub alone, HOME stays untouched, answers have an end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from llmservice_fetch.failed import FetchFailed, HTTPStatusError, words
from llmservice_fetch.files import Listing, RemoteFile
from llmservice_fetch.hub import Hub
from llmservice_fetch.transfer import RetryPolicy, retrying
from llmservice_runtime.contract import FailureReason as R

from tests.support import hub as stand_in
from tests.support.fetching import TOKEN, Fetcher, model_files
from tests.support.http_servers import Reply as Answer
from tests.support.http_servers import Site, site

COMMIT = "c" * 40
MODEL = {"id": "org/tiny", "sha": COMMIT, "siblings": []}


@contextmanager
def model_hub() -> Iterator[Site]:
    with site(lambda _: Answer(body=json.dumps(MODEL).encode())) as found:
        yield found


def asked(site: Site, **more: str) -> Hub:
    return Hub.of("org/tiny", "spec.model.uri", {"HF_ENDPOINT": site.url, "HF_TOKEN": TOKEN, **more})


LARGE = RemoteFile("model.safetensors", 20 << 20, "a" * 64)


def read(hub: Hub, file: RemoteFile = LARGE) -> bytes:
    with hub.read(Listing(COMMIT, (file,)), file, 0, file.size) as (_, chunks):
        return b"".join(chunks)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_token_stays_with_the_hub(status: int) -> None:
    with model_hub() as hub, model_hub() as other:
        hub.answer = lambda path: Answer(status, {"Location": f"{other.url}{path}", "Set-Cookie": "session=word"})
        assert asked(hub).listing().revision == COMMIT
        hub.answer = lambda path: Answer(status, {"Location": f"{other.url}{path}", "X-Linked-Etag": f'"{LARGE.blob}"'})
        other.answer = lambda _: Answer(body=b"ok")
        assert read(asked(hub)) == b"ok"
    assert all(headers["authorization"] == f"Bearer {TOKEN}" for _, headers in hub.seen)
    assert other.seen
    assert not any({"authorization", "cookie"} & headers.keys() for _, headers in other.seen)


def test_a_hub_that_renamed_a_repository_is_followed_with_the_token() -> None:
    with model_hub() as hub:
        moved = {"Location": "/api/models/org/new/revision/main"}
        hub.answer = lambda path: Answer(body=json.dumps(MODEL).encode()) if "/new/" in path else Answer(307, moved)
        asked(hub).listing()
    assert [headers.get("authorization") for _, headers in hub.seen] == [f"Bearer {TOKEN}"] * 2


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://user:word@127.0.0.1/x"])
@pytest.mark.parametrize("ask", [lambda hub: hub.listing(), read], ids=["listing", "file"])
def test_a_redirect_elsewhere_is_refused(target: str, ask: Callable[[Hub], object]) -> None:
    with model_hub() as hub:
        hub.answer = lambda _: Answer(302, {"Location": target, "X-Linked-Etag": '"a"', "X-Linked-Size": "1"})
        with pytest.raises(HTTPStatusError) as caught:
            ask(asked(hub))
    assert not caught.value.is_transient
    assert "word" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "reason", "said"),
    [
        pytest.param(Answer(body=b"<html>welcome</html>"), R.MODEL_NOT_FOUND, "model hub", id="a page"),
        pytest.param(Answer(body=b"[]"), R.MODEL_NOT_FOUND, "model hub", id="a list"),
        pytest.param(Answer(body=b"null"), R.MODEL_NOT_FOUND, "model hub", id="nothing"),
        pytest.param(Answer(body=b'{"id": "a"}'), R.MODEL_NOT_FOUND, "model hub", id="no commit"),
        pytest.param(Answer(body=b'{"id": "a", "sha": 7}'), R.MODEL_NOT_FOUND, "model hub", id="a number"),
        pytest.param(
            Answer(body=b'{"id": "a", "sha": "c", "siblings": [{}]}'), R.MODEL_NOT_FOUND, "model hub", id="no name"
        ),
        pytest.param(
            Answer(body=b'{"id": "a", "sha": "c", "siblings": [{"rfilename": "../x"}]}'),
            R.MODEL_CORRUPT, "'../x'", id="a name that leaves the folder",
        ),
        pytest.param(Answer(body=b'{"id": "a", "sha": "../c"}'), R.MODEL_CORRUPT, "'../c'", id="so a commit"),
        pytest.param(Answer(404, body=b"not here"), R.MODEL_NOT_FOUND, "no model org/tiny", id="a site without models"),
        pytest.param(Answer(403, {"X-Error-Message": "Access to this resource is disabled."}),
                     R.MODEL_ACCESS_DENIED, "is disabled", id="disabled"),
        pytest.param(Answer(401), R.MODEL_TOKEN_REFUSED, "does not accept the token", id="no word of why"),
        pytest.param(Answer(500), R.MODEL_DOWNLOAD_FAILED, "answered 500", id="broken"),
        pytest.param(Answer(400, body=b'{"error": "bad\\n\\nname"}'), R.MODEL_DOWNLOAD_FAILED, "bad name", id="bad"),
        pytest.param(Answer(headers={"Content-Encoding": "gzip"}), R.MODEL_DOWNLOAD_FAILED, "compressed", id="gzip"),
    ],
)  # fmt: skip
def test_what_is_no_hub_is_said(answer: Answer, reason: R, said: str, tmp_path: Path) -> None:
    with model_hub() as hub:
        hub.answer = lambda _: answer
        failure = Fetcher(tmp_path, {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}).fails("model=hf://org/tiny")
    assert failure.reason is reason
    assert said in failure.message
    assert "\n" not in failure.message


def test_a_listing_that_the_library_reads_in_part_only(tmp_path: Path) -> None:
    """Some mirrors leave out what is in the listing of a large file; its size and hash are asked for one by one."""
    files = model_files()
    with stand_in.serving(stand_in.Hub({"org/tiny": stand_in.Repo(files)})) as hub, site() as mirror:
        large = {"rfilename": "model.safetensors", "lfs": {"size": 1, "sha256": "0" * 64}}
        listing = {"id": "a", "sha": hub.repos["org/tiny"].commit, "siblings": [{"rfilename": "config.json"}, large]}
        names = {**listing, "siblings": [{"rfilename": "config.json"}, {"rfilename": "model.safetensors"}]}

        def answer(path: str) -> Answer:
            if path.startswith("/api/"):
                return Answer(body=json.dumps(listing if "blobs" in path else names).encode())
            return Answer(307, {"Location": hub.url + path})

        mirror.answer = answer
        Fetcher(tmp_path, {"HF_ENDPOINT": mirror.url}).run_here("model=hf://org/tiny")
    assert (tmp_path / "links" / "model" / "model.safetensors").read_bytes() == files["model.safetensors"]


def test_an_answer_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmservice_fetch.hub._RESPONSE_LIMIT", 1000)
    with model_hub() as hub:
        hub.answer = lambda _: Answer(body=b" " * 2000)
        with pytest.raises(FetchFailed, match="more than 1000 bytes"):
            Fetcher(tmp_path, {"HF_ENDPOINT": hub.url}).run_here("model=hf://org/tiny")


def test_a_name_that_the_hub_does_not_allow(tmp_path: Path) -> None:
    failure = Fetcher(tmp_path, {}).fails("model=hf://org/a--b")
    assert failure.reason is R.MODEL_NOT_FOUND


def test_the_hub_says_how_long_to_wait(tmp_path: Path) -> None:
    waited: list[float] = []
    answers = [Answer(429, {"Retry-After": "37"}), Answer(503), Answer(body=json.dumps(MODEL).encode())]
    with model_hub() as hub:
        hub.answer = lambda _: answers.pop(0)
        retrying(asked(hub).listing, RetryPolicy(sleep=waited.append), lambda _: None, "the hub")
    assert waited == [37.0, 2.0]


def test_home_is_neither_read_nor_written(tmp_path: Path) -> None:
    home = tmp_path / "home"
    token = home / ".cache" / "huggingface" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("hf_ofWhoeverLivesHere")
    before = sorted(home.rglob("*"))
    with stand_in.serving(stand_in.Hub({"org/tiny": stand_in.Repo(model_files())})) as hub:
        environment = {"HF_ENDPOINT": hub.url, "HOME": str(home), "HF_DEBUG": "1", "HF_HUB_VERBOSITY": "debug"}
        ended = Fetcher(tmp_path, environment).succeeds("model=hf://org/tiny")
    assert not any(seen.authorized for seen in hub.asked)
    assert sorted(home.rglob("*")) == before
    assert {seen.path.split("/")[1] for seen in hub.asked} == {"api", "org", "storage"}, "nobody counts its users"
    assert not any(word in ended.words for word in ("X-Amz-Signature", "curl", "hf_ofWhoeverLivesHere"))


def test_words_of_an_error_hold_no_signature() -> None:
    error = OSError("GET https://me:word@host/file?X-Amz-Signature=secret (see https://x/y?sig=more)\nagain")
    assert words(error) == "GET https://host/file (see https://x/y) again"
