"""hf://: one download, resumed after a kill, verified; each refusal its own reason. Against a hub on loopback."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from llmservice_fetch.failed import FetchFailed
from llmservice_runtime.contract import FailureReason as R
from llmservice_runtime.contract import Transfer, TransferStep
from llmservice_runtime.supervisor.fetch_phase import read_document

from tests.support.fetching import TOKEN, Fetcher, end_of, model_files, partial_bytes
from tests.support.http_servers import loopback_tls
from tests.support.hub import Hub, Repo, serving
from tests.support.patience import until

MB = 1_000_000


@pytest.fixture
def hub() -> Iterator[Hub]:
    repos = {
        "org/tiny": Repo(model_files()),
        "org/sharded": Repo(model_files({f"model-{n}.safetensors": 2 * MB for n in range(3)})),
        "org/gated": Repo(model_files(), gated=True),
        "org/private": Repo(model_files(), private=True),
    }
    tokens = {TOKEN: {"org/gated", "org/private"}, "hf_ofSomebodyElse": set()}
    with serving(Hub(repos, tokens)) as running:
        yield running


@pytest.fixture
def fetcher(hub: Hub, tmp_path: Path) -> Fetcher:
    return Fetcher(tmp_path, {"HF_ENDPOINT": hub.url})


def test_a_model_comes_whole_with_its_progress(hub: Hub, fetcher: Fetcher) -> None:
    ended = fetcher.succeeds("model=hf://org/sharded")
    repo = hub.repos["org/sharded"]
    assert {path.name: path.read_bytes() for path in (fetcher.links / "model").iterdir()} == repo.files
    assert ended.paths == {"model": (fetcher.links / "model").resolve()}
    last = ended.transfers[-1]
    assert (last.step, last.percent, last.bytes_total) == (
        TransferStep.VERIFYING, 100, sum(map(len, repo.files.values())),
    )  # fmt: skip
    assert [t.bytes_done for t in ended.transfers] == sorted(t.bytes_done for t in ended.transfers)


def test_what_is_there_is_not_fetched_again(hub: Hub, fetcher: Fetcher) -> None:
    fetcher.run("model=hf://org/tiny")
    before = len(hub.contents())
    fetcher.succeeds("model=hf://org/tiny")
    assert len(hub.contents()) == before == 1


async def test_a_killed_fetch_goes_on_where_it_was(hub: Hub, fetcher: Fetcher) -> None:
    hub.repos["org/tiny"].files["model.safetensors"] = big = model_files({"x": 8 * MB})["x"]
    hub.bytes_per_second = 4 * MB
    process = fetcher.start("model=hf://org/tiny")
    await until(lambda: partial_bytes(fetcher.cache) > 2 * MB)
    process.kill()
    end_of(process)
    there = partial_bytes(fetcher.cache)
    hub.bytes_per_second = None
    ended = fetcher.succeeds("model=hf://org/tiny")
    assert [asked.start for asked in hub.contents()] == [0, there]
    assert (fetcher.links / "model" / "model.safetensors").read_bytes() == big
    assert "resuming model.safetensors at" in ended.log


async def test_two_at_once_fetch_once(hub: Hub, fetcher: Fetcher) -> None:
    hub.bytes_per_second = 100_000
    first = fetcher.start("model=hf://org/sharded")
    await until(lambda: partial_bytes(fetcher.cache) > 0)
    second = fetcher.in_another_pod().start("model=hf://org/sharded")  # in one pod there is one fetch container
    assert second.stdout is not None
    waiting = (said for line in second.stdout if isinstance(said := read_document(line), Transfer))
    assert next(said.bytes_done for said in waiting if said.step is TransferStep.WAITING and said.bytes_done > 100_000)
    hub.bytes_per_second = None
    ends = [end_of(first), end_of(second)]
    assert [ended.code for ended in ends] == [0, 0], "\n".join(ended.words[-2000:] for ended in ends)
    assert len(hub.contents()) == 3
    assert "another process fetches this" in ends[1].log


def test_a_mirror_that_lists_names_only_is_asked_for_each_file(hub: Hub, fetcher: Fetcher) -> None:
    repo = hub.repos["org/tiny"]
    hub.lists_names_only = True
    repo.damaged.add("model.safetensors")
    failure = fetcher.fails("model=hf://org/tiny")
    assert failure.reason is R.MODEL_CORRUPT, "the hash comes from the redirect"
    repo.damaged.clear()
    fetcher.run_here("model=hf://org/tiny")
    assert (fetcher.links / "model" / "model.safetensors").read_bytes() == repo.files["model.safetensors"]


def test_a_mirror_that_cannot_go_on_in_the_middle_begins_anew(hub: Hub, fetcher: Fetcher) -> None:
    repo = hub.repos["org/tiny"]
    hub.ignores_ranges = True
    repo.cut_at["model.safetensors"] = 100_000
    documents = fetcher.run_here("model=hf://org/tiny")
    assert (fetcher.links / "model" / "model.safetensors").read_bytes() == repo.files["model.safetensors"]
    assert len(hub.contents()) == 2
    done = [document["transfer"]["bytesDone"] for document in documents if "transfer" in document]
    assert done[-1] == sum(map(len, repo.files.values()))


def test_a_lost_connection_is_taken_up_again(hub: Hub, fetcher: Fetcher) -> None:
    hub.repos["org/sharded"].cut_at["model-1.safetensors"] = MB
    hub.failures = 2
    fetcher.run_here("model=hf://org/sharded")
    starts = [asked.start for asked in hub.contents()]
    assert sum(1 for start in starts if start > 0) == 1
    assert max(starts) <= MB


def test_a_hub_that_stays_away_is_given_up(hub: Hub, fetcher: Fetcher) -> None:
    hub.failures = 1000
    failure = fetcher.fails("model=hf://org/tiny", attempts=4)
    assert failure.reason is R.MODEL_DOWNLOAD_FAILED
    assert "503" in failure.message
    assert len(hub.asked) == 4


def test_a_file_that_came_wrong_is_fetched_once_more(hub: Hub, fetcher: Fetcher) -> None:
    repo = hub.repos["org/tiny"]
    repo.damaged.add("model.safetensors")
    failure = fetcher.run("model=hf://org/tiny").failure
    assert failure is not None
    assert failure.reason is R.MODEL_CORRUPT
    assert hashlib.sha256(repo.files["model.safetensors"]).hexdigest() in failure.message
    assert len(hub.contents()) == 2
    repo.damaged.clear()
    fetcher.succeeds("model=hf://org/tiny")


def test_a_shard_that_was_published_broken_is_named(hub: Hub, fetcher: Fetcher) -> None:
    files = hub.repos["org/sharded"].files
    files["model-1.safetensors"] = files["model-1.safetensors"][:MB]
    failure = fetcher.run("model=hf://org/sharded").failure
    assert failure is not None
    assert failure.reason is R.MODEL_CORRUPT
    assert "model-1.safetensors is damaged" in failure.message


@pytest.mark.parametrize(
    ("uri", "token", "reason", "remedy"),
    [
        pytest.param("hf://org/none", "", R.MODEL_NOT_FOUND, "spec.model.uri", id="no such model"),
        pytest.param("hf://org/none", TOKEN, R.MODEL_NOT_FOUND, "spec.model.uri", id="no such model, with a token"),
        pytest.param("hf://org/tiny@v9", "", R.MODEL_REVISION_NOT_FOUND, "behind the @", id="no such revision"),
        pytest.param("hf://org/gated", "", R.MODEL_ACCESS_DENIED, "licence", id="gated, without a token"),
        pytest.param("hf://org/gated", "hf_ofSomebodyElse", R.MODEL_ACCESS_DENIED, "licence", id="gated"),
        pytest.param("hf://org/private", "", R.MODEL_NOT_FOUND, "hfTokenSecretRef", id="private"),
        pytest.param("hf://org/tiny", "hf_wrong_token", R.MODEL_TOKEN_REFUSED, "hfTokenSecretRef", id="wrong token"),
        pytest.param("hf://org/gated", "hf_wrong_token", R.MODEL_TOKEN_REFUSED, "hfTokenSecretRef", id="both"),
        pytest.param("hf://org/../x", "", R.MODEL_NOT_FOUND, "hf://, s3://", id="a name that leaves the cache"),
    ],
)
def test_refusals_are_told_apart(fetcher: Fetcher, uri: str, token: str, reason: R, remedy: str) -> None:
    ended = fetcher.with_(HF_TOKEN=token).run(f"model={uri}")
    assert ended.code == 1
    assert ended.failure is not None
    assert ended.failure.reason is reason
    assert remedy in ended.failure.remedy
    assert not token or token not in ended.words


@pytest.mark.parametrize("repo", ["org/gated", "org/private"])
def test_a_token_opens_and_is_never_said(hub: Hub, fetcher: Fetcher, repo: str) -> None:
    ended = fetcher.with_(HF_TOKEN=TOKEN).succeeds(f"model=hf://{repo}")
    assert TOKEN not in ended.words
    assert "X-Amz-Signature" not in ended.words
    assert all(asked.authorized for asked in hub.asked if not asked.path.startswith("/storage/"))
    assert not any(asked.authorized for asked in hub.contents()), "the storage host was given the token"


def test_a_complete_commit_needs_no_hub(hub: Hub, fetcher: Fetcher) -> None:
    commit = hub.repos["org/tiny"].commit
    fetcher.run(f"model=hf://org/tiny@{commit}")
    before = len(hub.asked)
    fetcher.succeeds(f"model=hf://org/tiny@{commit}")
    assert len(hub.asked) == before


def test_a_branch_is_served_from_the_cache_while_the_hub_is_away(hub: Hub, fetcher: Fetcher) -> None:
    fetcher.run("model=hf://org/tiny")
    ended = fetcher.with_(HF_HUB_OFFLINE="1").succeeds("model=hf://org/tiny")
    assert "from the cache" in ended.log
    hub.failures = 1000
    fetcher.run_here("model=hf://org/tiny")
    with pytest.raises(FetchFailed):
        fetcher.run_here("model=hf://org/sharded")


def test_a_new_commit_of_a_branch_shares_what_did_not_change(hub: Hub, fetcher: Fetcher) -> None:
    fetcher.run("model=hf://org/sharded")
    hub.repos["org/sharded"].files["config.json"] = model_files(hidden_size=8)["config.json"]
    before = len(hub.contents())
    fetcher.succeeds("model=hf://org/sharded")
    assert len(hub.contents()) == before
    assert b"hidden_size" in (fetcher.links / "model" / "config.json").read_bytes()


def test_a_hub_whose_authority_nobody_named_gets_no_token(tmp_path: Path) -> None:
    with serving(Hub({"org/tiny": Repo(model_files())}), tls=loopback_tls()[0]) as hub:
        with pytest.raises(FetchFailed) as caught:
            Fetcher(tmp_path, {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}).run_here("model=hf://org/tiny", attempts=1)
        assert hub.asked == []
    assert "CERTIFICATE_VERIFY_FAILED" in caught.value.failure.message
    assert "CA settings" in caught.value.failure.remedy


@pytest.mark.vllm
def test_huggingface_hub_finds_what_was_fetched(hub: Hub, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("huggingface_hub") is None:
        pytest.skip("needs the vllm dependency group")
    from huggingface_hub import snapshot_download

    fetcher.run("model=hf://org/sharded")
    found = Path(snapshot_download("org/sharded", cache_dir=fetcher.cache / "hub", local_files_only=True))
    assert {path.name: path.read_bytes() for path in found.iterdir()} == hub.repos["org/sharded"].files
