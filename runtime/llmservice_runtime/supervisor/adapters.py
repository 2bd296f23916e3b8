"""Reconciles vLLM's LoRA adapters with the mounted list, without a restart.

vLLM reports what it serves; this module only remembers the path of each adapter and when to retry a failed one. A
failed adapter is reported in /state and affects nothing else: any error of its files, its source, vLLM or this code
counts as the failure of that adapter, and `reconcile` raises nothing.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmservice_runtime import adapter_list
from llmservice_runtime.adapter_list import Adapter
from llmservice_runtime.bounded_json import Reader, clean, opened
from llmservice_runtime.contract import AdapterState, Failure, State
from llmservice_runtime.fetch_protocol import Request
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.preflight import adapter_files
from llmservice_runtime.preflight.model_files import read_config
from llmservice_runtime.supervisor.client import Access, Response, http_request
from llmservice_runtime.supervisor.dependencies import Dependencies
from llmservice_runtime.supervisor.fetch_phase import FetchContainer
from llmservice_runtime.supervisor.tasks import cancel_and_wait, in_thread
from llmservice_runtime.supervisor.vllm_process import Flags

LOAD_SECONDS = 300.0
FILES_SECONDS = 60.0
"""For the files of one adapter, which may be on a volume that hangs."""
LONGEST_RETRY = 300.0
UNLOAD_RETRY = 30.0
_MOST_SERVED = 4096
_LONGEST_PATH = 4096
_LONGEST_MESSAGE = 512
_REPORT_IT = "Report this with the container's log, which shows the calls, and check the files of the adapter."
_ALL_MESSAGES = 24 << 10
"""Bytes of JSON for the messages of all adapters: keeps /state within the operator's read limit."""


class AdapterFailed(Exception):
    """An adapter cannot be served; message and remedy."""


Prepare = Callable[[Adapter], Awaitable[Path]]
"""Returns the folder of an adapter once its files are present. AdapterFailed."""


@dataclass(frozen=True)
class LoraEndpoints:
    """vLLM's endpoints for adapters.

    Each call raises OSError on no response, AdapterFailed on an error status, ValueError on an unexpected body.
    """

    port: int
    headers: Mapping[str, str]

    async def served(self) -> dict[str, str]:
        """Adapter name -> path of the adapters that vLLM serves."""
        response = await http_request(self.port, "/v1/models", headers=self.headers, timeout=LOAD_SECONDS)
        _check(response, "GET /v1/models")
        # Entries with a parent are adapters; the others are names of the base model.
        cards = map(Reader, Reader(response.json()).items("data", _MOST_SERVED))
        return {card.word("id"): card.word("root", _LONGEST_PATH) for card in cards if card.has("parent")}

    async def load(self, name: str, path: Path) -> None:
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})

    async def unload(self, name: str) -> None:
        """Unload an adapter; running requests complete."""
        await self._post("/v1/unload_lora_adapter", {"lora_name": name})

    async def _post(self, path: str, fields: Mapping[str, str]) -> None:
        body = json.dumps(fields)
        response = await http_request(
            self.port, path, method="POST", body=body, headers=self.headers, timeout=LOAD_SECONDS
        )
        _check(response, f"POST {path}")


@dataclass
class _Entry:
    """State of one adapter of the list."""

    adapter: Adapter
    path: Path | None = None
    state: AdapterState | None = None
    attempts: int = 0
    retry_at: float = 0.0
    check: asyncio.Future[str | None] | None = None
    """A running check of its files, reused while the volume hangs."""


class Adapters:
    """The adapters of the list in `file` (None: LoRA is off) and their states."""

    def __init__(
        self,
        file: Path | None,
        endpoints: LoraEndpoints,
        prepare: Prepare,
        *,
        max_rank: int,
        base: Callable[[], Mapping[str, Any]],
        clock: Callable[[], float],
        retry_seconds: float,
        log: Callable[[str], None],
    ) -> None:
        self._file, self._endpoints, self._prepare = file, endpoints, prepare
        self._max_rank, self._base = max_rank, base
        self._clock, self._retry_seconds, self._log = clock, retry_seconds, log
        self._entries: dict[str, _Entry] = {}
        self._last_error = ""
        self._unload_at: float | None = None
        self.hash = ""
        """Digest of the list that `states` belongs to; empty before the first."""

    @property
    def states(self) -> tuple[AdapterState, ...]:
        """Adapters in the order of the list; not loaded and without a message means pending."""
        return tuple(entry.state or AdapterState(name, loaded=False) for name, entry in self._entries.items())

    def with_adapters(self, state: State) -> State:
        """`state` with the adapters and their model names."""
        names = tuple(adapter.name for adapter in self.states if adapter.loaded)
        return replace(state, model_names=(*state.model_names, *names), adapters=self.states, adapters_hash=self.hash)

    @asynccontextmanager
    async def reconciling(self, seconds: float) -> AsyncIterator[None]:
        """A context in which the list is reconciled every `seconds`; the kubelet replaces the file without notice."""
        task = asyncio.ensure_future(self._reconcile_forever(seconds))
        try:
            yield
        finally:
            await cancel_and_wait(task)

    async def _reconcile_forever(self, seconds: float) -> None:
        while self._file is not None:
            await asyncio.sleep(seconds)
            await self.reconcile()

    async def reconcile(self) -> None:
        """Bring vLLM to the list where it changed or a retry is due. Raises nothing."""
        error_text = ""
        try:
            await self._reconcile()
        except (OSError, AdapterFailed, ValueError) as error:
            # vLLM is overloaded or ending, which the supervisor detects elsewhere; the next call retries.
            error_text = str(error)
        except Exception as error:  # noqa: BLE001 - a defect here must end neither the server nor this task
            error_text = f"{_unexpected(error)}\n{_frames(error)}"
        if error_text and error_text != self._last_error:
            self._log(f"adapters not reconciled: {error_text}")
        self._last_error = error_text

    async def _reconcile(self) -> None:
        await self._apply_list(self._read())
        if self._unload_at is not None and self._unload_at <= self._clock():
            await self._unload_all_but(self._entries)
        due = [entry for entry in self._entries.values() if not _is_loaded(entry) and entry.retry_at <= self._clock()]
        served = await self._endpoints.served() if due else {}
        for entry in due:
            await self._serve(entry, served.get(entry.adapter.name))

    def _read(self) -> str | None:
        """The list's text; None where the file is missing, which removes no adapter."""
        if self._file is None:
            return None
        try:
            with opened(self._file) as file:
                return file.read(adapter_list.MOST_BYTES + 1).decode()
        except FileNotFoundError:
            return None

    async def _apply_list(self, text: str | None) -> None:
        """Apply a changed list: unload removed adapters, keep unchanged loaded ones, retry failed ones immediately."""
        if text is None or (found := adapter_list.digest(text)) == self.hash:
            return
        listed = {adapter.name: adapter for adapter in adapter_list.from_json(text)}
        await self._unload_all_but(listed)
        before = self._entries
        self._entries = {
            name: before[name] if name in before and _stays(before[name], adapter) else _Entry(adapter)
            for name, adapter in listed.items()
        }
        self.hash = found

    async def _unload_all_but(self, names: Iterable[str]) -> None:
        """Unload all other adapters; a refused unload is retried later and does not block."""
        self._unload_at = None
        for name in sorted((await self._endpoints.served()).keys() - set(names)):
            try:
                await self._endpoints.unload(name)
                self._log(f"adapter {name} is no longer served")
            except AdapterFailed as failed:
                self._unload_at = self._clock() + UNLOAD_RETRY
                self._log(f"adapter {name} was removed from the list, but vLLM does not unload it: {failed}")

    async def _serve(self, entry: _Entry, served: str | None) -> None:
        """Check and load one adapter; a loaded one of the same name is replaced only after the check."""
        name = entry.adapter.name
        try:
            path = entry.path or await self._prepare(entry.adapter)
            if problem := await self._problem(entry, path):
                raise AdapterFailed(problem)
            if served not in (None, str(path)):
                await self._endpoints.unload(name)
                served = None
            if served is None:
                await self._endpoints.load(name, path)
        except AdapterFailed as failed:
            self._failed(entry, str(failed), served)
            return
        except OSError as error:
            self._failed(entry, f"{error.strerror or error}. It is retried; see the container's log.", served)
            return
        except Exception as error:  # noqa: BLE001 - must not affect other adapters or the base model
            self._log(f"adapter {name}: {_unexpected(error)}\n{_frames(error)}")
            self._failed(entry, f"It cannot be checked or loaded: {_unexpected(error)}. {_REPORT_IT}", served)
            return
        entry.path = path
        entry.state = AdapterState(name, loaded=True)
        self._log(f"adapter {name} is served from {path}")

    async def _problem(self, entry: _Entry, path: Path) -> str | None:
        """The problem of its files; None where none was found."""
        if entry.check is None:
            work = in_thread(lambda: adapter_files.problem(path, max_rank=self._max_rank, base=self._base()))
            entry.check = asyncio.ensure_future(work)
        await asyncio.wait([entry.check], timeout=FILES_SECONDS)
        if not entry.check.done():
            return (
                f"The files in {path} could not be read within {FILES_SECONDS:.0f} s. Check the server of its volume."
            )
        check, entry.check = entry.check, None
        return check.result()

    def _failed(self, entry: _Entry, message: str, served: str | None) -> None:
        entry.attempts += 1
        entry.retry_at = self._clock() + min(LONGEST_RETRY, self._retry_seconds * 2.0 ** min(entry.attempts - 1, 10))
        if served is not None:
            message += " Until then the previous adapter of this name is served."
        shortened = _cut(message, _ALL_MESSAGES // len(self._entries))
        state = AdapterState(entry.adapter.name, loaded=False, message=shortened)
        if state != entry.state:
            self._log(f"adapter {state.name} cannot be served: {state.message}")
        entry.state = state


def _frames(error: Exception) -> str:
    return "".join(traceback.format_tb(error.__traceback__)).rstrip()


def _unexpected(error: Exception) -> str:
    """Type and location of an unexpected error; not its text, which may quote untrusted content."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"an unexpected {type(error).__name__} in {Path(frame.filename).name}, line {frame.lineno}"


def _is_loaded(entry: _Entry) -> bool:
    return entry.state is not None and entry.state.loaded


def _stays(entry: _Entry, adapter: Adapter) -> bool:
    return entry.adapter == adapter and _is_loaded(entry)


def _cut(message: str, most_bytes: int) -> str:
    """The beginning of a message that fits into `most_bytes` of JSON."""
    text = clean(message)[:_LONGEST_MESSAGE]
    while len(json.dumps(text, ensure_ascii=False).encode()) > most_bytes:
        text = text[: len(text) * 7 // 8]
    return text


def _check(response: Response, what: str) -> None:
    if response.status != 200:
        raise AdapterFailed(f"{what} answered {response.status}: {response.error}")


def of_server(
    options: ServeOptions,
    flags: Flags,
    access: Access,
    dependencies: Dependencies,
    container: FetchContainer,
    log: Callable[[str], None],
) -> Adapters:
    """The adapters of a server, wired with its dependencies."""
    return Adapters(
        None if options.adapters_file is None else Path(options.adapters_file),
        LoraEndpoints(flags.port, access.headers),
        Source(container).prepare,
        max_rank=flags.max_lora_rank,
        base=lambda: read_config(Path(flags.model)),
        clock=dependencies.clock,
        retry_seconds=dependencies.timing.adapter_retry_seconds,
        log=log,
    )


@dataclass(frozen=True)
class Source:
    """Provides the folder of an adapter."""

    container: FetchContainer

    async def prepare(self, adapter: Adapter) -> Path:
        """The folder of an adapter. AdapterFailed where it cannot be fetched; mounted files are not checked here.

        The path of a fetched one contains its revision, because vLLM separates cached prompts of adapters by path.
        """
        if adapter.path is not None:
            return Path(adapter.path)
        name = adapter_list.artifact(adapter.uri)
        # Adapters are handled in turn and retried, so none waits long for a container that does not run.
        container = replace(self.container, wait_seconds=min(self.container.wait_seconds, 10.0))
        found = await container.get(Request((f"{name}={adapter.uri}",)), lambda progress: None)
        if isinstance(found, Failure):
            raise AdapterFailed(f"{found.message} {found.remedy}")
        if name not in found:
            raise AdapterFailed(f"{adapter.uri} was fetched, but its folder was not reported.")
        return found[name]
