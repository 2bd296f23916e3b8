"""The fetching process as the supervisor runs it, with its documents taken apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from llmservice_fetch.command import FetchOptions, FetchRun
from llmservice_fetch.failed import FetchFailed
from llmservice_fetch.transfer import RetryPolicy
from llmservice_runtime.contract import CacheRoom, Failure, Transfer
from llmservice_runtime.supervisor.fetch_phase import Fetched, read_document

from tests.support import forks
from tests.support.hub import Hub
from tests.support.weights import safetensors

TOKEN = "hf_tokenThatNobodyMayRead"
READ_LATE = {"HF_ENDPOINT", "HF_TOKEN"}
"""Variables that no library reads while it is imported."""
CONFIG = {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 4, "max_position_embeddings": 1024}


def model_files(weights: Mapping[str, int] | None = None, **config: object) -> dict[str, bytes]:
    """The files of a model; weights by name and size in bytes."""
    sizes = weights or {"model.safetensors": 300_000}
    return {
        "config.json": json.dumps({**CONFIG, **config}).encode(),
        "tokenizer.json": json.dumps({"model": {"vocab": {"a": 0, "b": 1}}}).encode(),
        "README.md": b"# a model\n",
        **{name: safetensors(size, seed=seed) for seed, (name, size) in enumerate(sizes.items())},
    }


@dataclass(frozen=True)
class Ended:
    """What a fetch said, and how it ended."""

    code: int
    stdout: str
    log: str

    @property
    def documents(self) -> list[Transfer | CacheRoom | Fetched | Failure]:
        return [found for line in self.stdout.splitlines() if (found := read_document(line)) is not None]

    @property
    def transfers(self) -> list[Transfer]:
        return [found for found in self.documents if isinstance(found, Transfer)]

    @property
    def failure(self) -> Failure | None:
        return next((found for found in self.documents if isinstance(found, Failure)), None)

    @property
    def paths(self) -> dict[str, Path]:
        return {found.artifact: found.path for found in self.documents if isinstance(found, Fetched)}

    @property
    def words(self) -> str:
        """Everything that left the process."""
        return self.stdout + self.log


@dataclass(frozen=True)
class Fetcher:
    """A cache, and the environment that a pod's fetches into it have."""

    folder: Path
    environment: Mapping[str, str]
    pod: str = "links"
    """The folder of its own links."""

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def links(self) -> Path:
        return self.folder / self.pod

    @property
    def command(self) -> tuple[str, ...]:
        """The process, without what it is to fetch."""
        places = (f"--cache={self.cache}", f"--links={self.links}")
        return (sys.executable, "-m", "llmservice_fetch", "fetch", *places)

    def with_(self, **environment: str) -> Fetcher:
        """The same cache in another environment."""
        return replace(self, environment={**self.environment, **environment})

    def in_another_pod(self) -> Fetcher:
        """With the same cache."""
        return replace(self, pod="other-links")

    def start(self, *wanted: str, args: tuple[str, ...] = (), options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """A process of its own; `wanted` are NAME=URI."""
        return subprocess.Popen(
            [*self.command, *(f"--fetch={text}" for text in wanted), *options, "--", *args],
            env={**_plain_environment(), **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *wanted: str, args: tuple[str, ...] = (), options: tuple[str, ...] = ()) -> Ended:
        """From start to end."""
        if not all(name in READ_LATE or name.startswith("AWS_") for name in self.environment):
            return end_of(self.start(*wanted, args=args, options=options))
        arguments = [*self.command[3:], *(f"--fetch={text}" for text in wanted), *options, "--", *args]
        done = forks.run(arguments, {**_plain_environment(), **self.environment})
        return Ended(done.returncode, done.stdout, done.stderr)

    def succeeds(self, *wanted: str, args: tuple[str, ...] = (), options: tuple[str, ...] = ()) -> Ended:
        """Run it to its end with exit code 0."""
        ended = self.run(*wanted, args=args, options=options)
        assert ended.code == 0, ended.words
        return ended

    def fails(self, *wanted: str, **more: Any) -> Failure:
        """Run it in this process; its failure."""
        with pytest.raises(FetchFailed) as caught:
            self.run_here(*wanted, **more)
        return caught.value.failure

    def run_here(self, *wanted: str, attempts: int = 3, **more: Any) -> list[dict[str, Any]]:
        """In this process, where waiting takes no time. Raises FetchFailed."""
        documents: list[dict[str, Any]] = []
        patience = RetryPolicy(attempts=attempts, sleep=lambda _: None)
        asked = FetchOptions(wanted, self.cache, self.links, **more)
        FetchRun(
            asked, self.environment, lambda _: None, lambda document: documents.append(dict(document)), patience
        ).run()
        return documents


class Claim:
    """A fetched commit of org/tiny in a cache."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.hub, self.repo = hub, hub.repos["org/tiny"]
        self.fetcher = Fetcher(folder, {"HF_ENDPOINT": hub.url})
        self.uri = f"model=hf://org/tiny@{self.repo.commit}"
        self.fetcher.run_here(self.uri)
        self.root = self.fetcher.cache / "hub/models--org--tiny"
        hub.asked.clear()

    def change_listing(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the listing of the commit."""
        path = self.root / ".llmservice" / f"{self.repo.commit}.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    def served(self) -> dict[str, bytes]:
        """What vLLM sees."""
        folder = self.fetcher.links / "model"
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def end_of(process: subprocess.Popen[str], seconds: float = 60) -> Ended:
    """Wait for a process."""
    stdout, log = process.communicate(timeout=seconds)
    return Ended(process.returncode, stdout, log)


def partial_bytes(folder: Path) -> int:
    """What lies below a folder of files that are not whole yet, while others write there and delete."""
    found = 0
    for place, _, names in os.walk(folder):  # passes over folders that are gone, where rglob raises
        for name in names:
            with suppress(FileNotFoundError):  # complete meanwhile
                found += (Path(place) / name).stat().st_size if ".incomplete" in name else 0
    return found


def _plain_environment() -> dict[str, str]:
    """Without credentials and endpoints of whoever runs the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "AWS_", "HUGGING"))}
