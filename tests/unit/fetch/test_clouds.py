"""gs:// and az:// against real servers: fake-gcs-server, and Azurite, which checks keys and signatures."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from llmservice_fetch.inspection import inspect
from llmservice_runtime.contract import FailureReason as R

from tests.support.cloud_stores import ACCOUNT_KEY, AzureStore, GoogleStore, azure_store, google_store
from tests.support.fetching import Ended, Fetcher, model_files

pytestmark = pytest.mark.full

MB = 1_000_000
FILES = model_files({"model-1.safetensors": 12 * MB, "model-2.safetensors": 300_000})
KEY = {"AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY}


@pytest.fixture(scope="module")
def google() -> Iterator[GoogleStore]:
    with google_store() as running:
        running.make_bucket("models")
        for name, content in FILES.items():
            running.put("models", f"team a/tiny+1/{name}", content)
        running.put("models", "team a/tiny+10/config.json", b"{}")
        yield running


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureStore]:
    with azure_store(tmp_path_factory.mktemp("azurite")) as running:
        running.make_bucket("models")
        running.make_bucket("everybodys", public=True)
        for container in ("models", "everybodys"):
            for name, content in FILES.items():
                running.put(container, f"team a/tiny+1/{name}", content)
        running.put("models", "team a/tiny+10/config.json", b"{}")
        large = FILES["model-1.safetensors"]
        running.put("models", "parts/config.json", FILES["config.json"])
        running.put_in_parts("models", "parts/model.safetensors", large[: 4 * MB], large[4 * MB :])
        yield running


def came_whole(ended: Ended, fetcher: Fetcher) -> None:
    assert ended.code == 0, ended.words
    assert {path.name: path.read_bytes() for path in (fetcher.links / "model").iterdir()} == FILES


def goes_on(fetcher: Fetcher, uri: str) -> None:
    """After a kill, which leaves a part of a file."""
    large = len(FILES["model-1.safetensors"])
    (blob,) = (path for path in fetcher.cache.rglob("blobs/*") if path.stat().st_size == large)
    partial = blob.rename(blob.with_name(f"{blob.name}.incomplete"))
    with partial.open("r+b") as opened:
        opened.truncate(5 * MB)
    again = fetcher.run(uri)
    came_whole(again, fetcher)
    assert "resuming model-1.safetensors at 42%" in again.log


def test_google(google: GoogleStore, tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path, google.environment)
    came_whole(fetcher.run("model=gs://models/team a/tiny+1"), fetcher)
    goes_on(fetcher, "model=gs://models/team a/tiny+1")
    found = inspect("gs://models/team a/tiny+1", google.environment)
    assert found.failure is None
    assert found.tensors is not None


def test_google_with_a_file_that_came_wrong(google: GoogleStore, tmp_path: Path) -> None:
    """The hash that the server publishes finds it."""
    fetcher = Fetcher(tmp_path, google.environment)
    fetcher.run("model=gs://models/team a/tiny+1")
    small = len(FILES["model-2.safetensors"])
    (blob,) = (path for path in fetcher.cache.rglob("blobs/*") if path.stat().st_size == small)
    blob.unlink()
    blob.with_name(f"{blob.name}.incomplete").write_bytes(b"x" * 1000)
    ended = fetcher.run("model=gs://models/team a/tiny+1")
    came_whole(ended, fetcher)
    assert "has another hash than published" in ended.log


@pytest.mark.parametrize("who", ["key", "SAS", "nobody"])
def test_azure(azure: AzureStore, tmp_path: Path, who: str) -> None:
    uri = f"az://{'everybodys' if who == 'nobody' else 'models'}/team a/tiny+1"
    sas = azure.sas("models")
    credentials = {"key": KEY, "SAS": {"AZURE_STORAGE_SAS_TOKEN": f"?{sas}"}, "nobody": {}}[who]
    fetcher = Fetcher(tmp_path, azure.environment | credentials)
    ended = fetcher.run(f"model={uri}")
    came_whole(ended, fetcher)
    goes_on(fetcher, f"model={uri}")
    assert inspect(uri, azure.environment | credentials).failure is None
    for secret in (ACCOUNT_KEY, sas.rpartition("sig=")[2]):
        assert secret not in ended.words


def test_azure_of_blocks(azure: AzureStore, tmp_path: Path) -> None:
    fetcher = Fetcher(tmp_path, azure.environment | KEY)
    fetcher.succeeds("model=az://models/parts")
    assert (fetcher.links / "model" / "model.safetensors").read_bytes() == FILES["model-1.safetensors"]


@pytest.mark.parametrize(
    ("uri", "who", "reason", "remedy"),
    [
        pytest.param("az://none/tiny", "key", R.MODEL_NOT_FOUND, "spec.model.azure.endpoint", id="no such container"),
        pytest.param("az://models/tin", "key", R.MODEL_NOT_FOUND, "spec.model.uri", id="nothing below the prefix"),
        pytest.param("az://models/parts", "wrong key", R.MODEL_TOKEN_REFUSED, "credentialsSecretRef", id="wrong key"),
        pytest.param("az://models/parts", "expired", R.MODEL_TOKEN_REFUSED, "credentialsSecretRef", id="expired SAS"),
        pytest.param("az://models/parts", "no list", R.MODEL_ACCESS_DENIED, "Blob Data Reader", id="SAS without list"),
        pytest.param("az://models/parts", "nobody", R.MODEL_ACCESS_DENIED, "credentialsSecretRef", id="nobody"),
    ],
)  # fmt: skip
def test_refusals_of_azure(azure: AzureStore, tmp_path: Path, uri: str, who: str, reason: R, remedy: str) -> None:
    ways = {
        "key": KEY,
        "wrong key": {"AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(b"the key of somebody else").decode()},
        "expired": {"AZURE_STORAGE_SAS_TOKEN": azure.sas("models", hours=-1)},
        "no list": {"AZURE_STORAGE_SAS_TOKEN": azure.sas("models", rights="r")},
        "nobody": {},
    }
    ended = Fetcher(tmp_path, azure.environment | ways[who]).run(f"model={uri}")
    assert ended.failure is not None, ended.words
    assert ended.failure.reason is reason, ended.failure
    assert remedy in ended.failure.remedy
    for secret in ways[who].values():
        assert secret not in ended.words
        assert secret.rpartition("sig=")[2] not in ended.words
