"""The tests' hub against the real huggingface_hub: what it is taken for by others, it may stand for here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fetching import TOKEN, model_files
from tests.support.hub import Hub, Repo, serving

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
    }
    with serving(Hub(repos, {TOKEN: {"org/gated"}})) as running:
        yield running


def downloaded(hub: Hub, folder: Path, repo: str, revision: str = "main", token: str = "") -> str:
    """What the real client makes of it: a path, or the name of its error."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": token,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "" if token else "1",
        "HF_HOME": str(folder / "home"),
    }
    command = [sys.executable, "-c", DOWNLOAD, repo, revision, str(folder / "cache")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


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
