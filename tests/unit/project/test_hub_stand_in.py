"""The tests' hub against the real huggingface_hub: what it is taken for by others, it may stand for here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fetching import TOKEN, end_of, model_files, partial_bytes
from tests.support.hub import Hub, Repo, serving
from tests.support.patience import until

# In a process of its own: the client reads its endpoint while it is imported.
DOWNLOAD = """
import sys
from huggingface_hub import snapshot_download
try:
    print(snapshot_download(sys.argv[1], revision=sys.argv[2], cache_dir=sys.argv[3]))
except Exception as error:
    print(type(error).__name__)
"""
pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub", reason="needs the vllm dependency group")
    repos = {
        "org/tiny": Repo(model_files({"a.safetensors": 100_000, "b.safetensors": 200_000})),
        "org/gated": Repo(model_files(), gated=True),
        "org/large": Repo(model_files({"model.safetensors": 48_000_000})),
    }
    with serving(Hub(repos, {TOKEN: {"org/gated"}})) as running:
        yield running


def started(hub: Hub, folder: Path, repo: str, revision: str = "main", token: str = "") -> subprocess.Popen[str]:
    """The real client, on its way."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": token,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "" if token else "1",
        "HF_HOME": str(folder / "home"),
    }
    command = [sys.executable, "-c", DOWNLOAD, repo, revision, str(folder / "cache")]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def downloaded(hub: Hub, folder: Path, repo: str, revision: str = "main", token: str = "") -> str:
    """What the real client makes of it: a path, or the name of its error."""
    ended = end_of(started(hub, folder, repo, revision, token), 120)
    assert ended.code == 0, ended.log
    return ended.stdout.split()[-1]


def test_the_real_client_downloads_a_model(hub: Hub, tmp_path: Path) -> None:
    found = Path(downloaded(hub, tmp_path, "org/tiny"))
    assert {path.name: path.read_bytes() for path in found.iterdir()} == hub.repos["org/tiny"].files


@pytest.mark.parametrize(
    ("repo", "revision", "token", "error"),
    [
        pytest.param("org/none", "main", "", "RepositoryNotFoundError", id="no such model"),
        pytest.param("org/tiny", "v9", "", "RevisionNotFoundError", id="no such revision"),
        pytest.param("org/gated", "main", "", "GatedRepoError", id="gated"),
        pytest.param("org/tiny", "main", "hf_wrong_token", "HfHubHTTPError", id="wrong token"),
    ],
)
def test_the_real_client_knows_its_refusals(
    hub: Hub, tmp_path: Path, repo: str, revision: str, token: str, error: str
) -> None:
    assert downloaded(hub, tmp_path, repo, revision, token) == error


async def test_the_real_client_begins_anew_after_a_kill(hub: Hub, tmp_path: Path) -> None:
    """Why the bytes are not left to it. Where this fails, huggingface_hub resumes, and can have them."""
    size = len(hub.repos["org/large"].files["model.safetensors"])
    hub.bytes_per_second = 30_000_000
    process = started(hub, tmp_path, "org/large")
    await until(lambda: partial_bytes(tmp_path) > size / 2, 60)
    process.kill()
    end_of(process)
    hub.bytes_per_second = None
    before = len(hub.contents())
    assert downloaded(hub, tmp_path, "org/large").startswith("/")
    assert [asked.start for asked in hub.contents()[before:]] == [0]
    assert hub.sent["model.safetensors"] > 1.5 * size
    assert partial_bytes(tmp_path) > size / 2, "and what came before stays on the disk, for nobody"
