"""vLLM's server as a process of this machine, the real one or the stand-in: started, asked and ended by tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from llmservice_runtime.contract import Failure, Phase
from llmservice_runtime.failures.failures import End, classify

from tests.support.cluster import eventually
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.stand_in.behaviour import VARIABLE, Behaviour

ENGINE = "VLLM::EngineCor"
"""The engine's process, as the kernel shortens its name."""
NAME = "chat"


@dataclass(frozen=True)
class Kind:
    """Which of the two."""

    name: str
    module: str
    start_seconds: float
    environment: Mapping[str, str] = field(default_factory=dict)


STAND_IN = Kind(
    "stand-in",
    "tests.support.stand_in",
    20,
    {VARIABLE: Behaviour(start_seconds=0.5, tokens_per_second=200).to_env()},
)
# Nothing is fetched, no processor is claimed, and nothing is compiled.
REAL = Kind(
    "vllm",
    "vllm.entrypoints.openai.api_server",
    240,
    {"HF_HUB_OFFLINE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"},
)
_COMMON = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
FLAGS = ("--served-model-name", NAME, "--enforce-eager", "--dtype", "float32", "--shutdown-timeout", "0")


@dataclass(frozen=True)
class Server:
    """A started process; all it writes goes to a file."""

    kind: Kind
    process: subprocess.Popen[bytes]
    port: int
    output: Path

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self.output.read_text(errors="replace")

    def client(self, **headers: str) -> httpx.Client:
        """With a connection of its own."""
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, trust_env=False)

    def health(self) -> int:
        """The status of /health; 0 where nobody listens."""
        try:
            with self.client() as client:
                return client.get("/health").status_code
        except httpx.TransportError:
            return 0

    def until_healthy(self) -> None:
        """Wait for the open port; AssertionError with the log where it ends before."""

        def look() -> bool:
            assert self.process.poll() is None, self.log[-3000:]
            return self.health() == 200

        eventually(f"/health of {self.kind.name}", look, self.kind.start_seconds)

    def until_said(self, words: str) -> None:
        """Wait for words in its log."""
        eventually(f"{words!r} in the log of {self.kind.name}", lambda: words in self.log, self.kind.start_seconds)

    def engine(self) -> int:
        """The pid of its engine's process."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        (found,) = (pid for pid in map(int, children) if Path(f"/proc/{pid}/comm").read_text().strip() == ENGINE)
        return found

    def ended(self, seconds: float = 30) -> int:
        """Its exit code, negative for a signal. AssertionError where it does not end."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired as slow:
            raise AssertionError(f"{self.kind.name} does not end:\n{self.log[-3000:]}") from slow

    def failure(self, phase: Phase) -> Failure:
        """What the supervisor makes of its end."""
        code = self.ended()
        end = End(code if code >= 0 else None, -code if code < 0 else None, phase)
        return classify(end, self.log.splitlines())


@contextlib.contextmanager
def started(kind: Kind, folder: Path, model: str, *flags: str, extra: Mapping[str, str] = {}) -> Iterator[Server]:
    """A server that need not be up; nothing of it is left afterwards."""
    port, output = free_port(), folder / f"{kind.name}-{time.monotonic_ns()}.log"
    command: Sequence[str] = (sys.executable, "-u", "-m", kind.module, "--model", model, "--port", str(port), *flags)
    environment = {**os.environ, **_COMMON, **kind.environment, **extra}
    with (
        output.open("wb") as written,
        subprocess.Popen(
            command, env=environment, cwd=folder, stdout=written, stderr=subprocess.STDOUT, start_new_session=True
        ) as process,
    ):
        try:
            yield Server(kind, process, port, output)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
