"""Keeps vLLM serving the LoRA adapters of the mounted list: added and removed without a restart, put back after one.

vLLM itself says what it serves; what is remembered here is only where each adapter lies and when a broken one is to be
tried again. A broken adapter is told of in /state and stops nothing: whatever its files, its source or vLLM make of it,
a defect in this code included, is the failure of this one adapter, and `settle` raises nothing.
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

from llmservice_runtime.adapters import adapter_files, adapter_list
from llmservice_runtime.adapters.adapter_list import Adapter
from llmservice_runtime.bounded_json import Reader, clean, opened
from llmservice_runtime.contract import AdapterState, State
from llmservice_runtime.supervisor.loopback import Answer, ask
from llmservice_runtime.supervisor.waiting import end, in_thread

LOAD_SECONDS = 300.0
FILES_SECONDS = 60.0
"""For the files of one adapter, which may be in a volume whose server does not answer."""
LONGEST_RETRY = 300.0
UNLOAD_RETRY = 30.0
_MOST_SERVED = 4096
_LONGEST_PATH = 4096
_LONGEST_MESSAGE = 512
_REPORT_IT = "Report this with the container's log, which shows the calls, and check the files of the adapter."
_ALL_MESSAGES = 24 << 10
"""Bytes of JSON for the messages of all adapters: with the rest, the state stays below what is read of it."""


class AdapterFailed(Exception):
    """An adapter cannot be served (yet); says why, and what to do about it."""


Prepare = Callable[[Adapter], Awaitable[Path]]
"""Where an adapter lies, once it is there. AdapterFailed when it cannot be had."""


@dataclass(frozen=True)
class Loras:
    """vLLM's endpoints for adapters.

    Each call raises OSError when nobody answers, AdapterFailed when vLLM refuses, ValueError for an answer of others.
    """

    port: int
    headers: Mapping[str, str]

    async def served(self) -> dict[str, str]:
        """Paths of the adapters that vLLM serves, by name."""
        answer = await ask(self.port, "/v1/models", headers=self.headers, timeout=LOAD_SECONDS)
        _check(answer, "GET /v1/models")
        # What has a parent is an adapter; the others are the base model's own names.
        cards = map(Reader, Reader(answer.json()).items("data", _MOST_SERVED))
        return {card.word("id"): card.word("root", _LONGEST_PATH) for card in cards if card.has("parent")}

    async def load(self, name: str, path: Path) -> None:
        """Serve it under its name."""
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})

    async def unload(self, name: str) -> None:
        """Serve it no more; requests that run with it end as they would have."""
        await self._post("/v1/unload_lora_adapter", {"lora_name": name})

    async def _post(self, path: str, fields: Mapping[str, str]) -> None:
        body = json.dumps(fields)
        answer = await ask(self.port, path, method="POST", body=body, headers=self.headers, timeout=LOAD_SECONDS)
        _check(answer, f"POST {path}")


@dataclass
class _Held:
    """What is known of one adapter of the list."""

    adapter: Adapter
    path: Path | None = None
    state: AdapterState | None = None
    tries: int = 0
    try_at: float = 0.0
    check: asyncio.Future[str | None] | None = None
    """A look at its files that has not ended: not begun again while the volume does not answer."""


class Adapters:
    """The mounted list, and what became of it; without a file, which is LoRA switched off, nothing ever."""

    def __init__(
        self,
        file: Path | None,
        loras: Loras,
        prepare: Prepare,
        *,
        max_rank: int,
        base: Callable[[], Mapping[str, Any]],
        clock: Callable[[], float],
        retry_seconds: float,
        say: Callable[[str], None],
    ) -> None:
        self._file, self._loras, self._prepare = file, loras, prepare
        self._max_rank, self._base = max_rank, base
        self._clock, self._retry_seconds, self._say = clock, retry_seconds, say
        self._held: dict[str, _Held] = {}
        self._waits_for = ""
        self._unload_at: float | None = None
        self.hash = ""
        """Of the list that `states` is about; empty before there was one."""

    @property
    def states(self) -> tuple[AdapterState, ...]:
        """Each adapter of the list, in its order; one without a message is on its way."""
        return tuple(held.state or AdapterState(name, loaded=False) for name, held in self._held.items())

    def tell(self, state: State) -> State:
        """The server's state, and what clients may call beside the base model."""
        names = tuple(adapter.name for adapter in self.states if adapter.loaded)
        return replace(state, model_names=(*state.model_names, *names), adapters=self.states, adapters_hash=self.hash)

    @asynccontextmanager
    async def followed(self, seconds: float) -> AsyncIterator[None]:
        """Meanwhile adapters come and go with their list; the kubelet exchanges the file, and nobody tells."""
        following = asyncio.ensure_future(self._follow(seconds))
        try:
            yield
        finally:
            await end(following)

    async def _follow(self, seconds: float) -> None:
        while self._file is not None:
            await asyncio.sleep(seconds)
            await self.settle()

    async def settle(self) -> None:
        """Bring vLLM to the list, where the list changed or something is due. Raises nothing."""
        waits_for = ""
        try:
            await self._settle()
        except (OSError, AdapterFailed, ValueError) as error:
            # vLLM is busy or on its way out, which the supervisor sees by itself; the next look tries again.
            waits_for = str(error)
        except Exception as error:  # noqa: BLE001 - a defect here must end neither the server nor the following
            waits_for = f"{_unexpected(error)}\n{_frames(error)}"
        if waits_for and waits_for != self._waits_for:
            self._say(f"adapters wait: {waits_for}")
        self._waits_for = waits_for

    async def _settle(self) -> None:
        await self._take(self._read())
        if self._unload_at is not None and self._unload_at <= self._clock():
            await self._unload_all_but(self._held)
        due = [held for held in self._held.values() if not _is_loaded(held) and held.try_at <= self._clock()]
        served = await self._loras.served() if due else {}
        for held in due:
            await self._serve(held, served.get(held.adapter.name))

    def _read(self) -> str | None:
        """The list's text; None where there is none, which takes nothing away."""
        if self._file is None:
            return None
        try:
            with opened(self._file) as file:
                return file.read(adapter_list.MOST_BYTES + 1).decode()
        except FileNotFoundError:
            return None

    async def _take(self, text: str | None) -> None:
        """Another list: what left it goes, what is in it as it was stays, what failed is tried again at once."""
        if text is None or (found := adapter_list.digest(text)) == self.hash:
            return
        listed = {adapter.name: adapter for adapter in adapter_list.from_json(text)}
        await self._unload_all_but(listed)
        before = self._held
        self._held = {
            name: before[name] if name in before and _stays(before[name], adapter) else _Held(adapter)
            for name, adapter in listed.items()
        }
        self.hash = found

    async def _unload_all_but(self, names: Iterable[str]) -> None:
        """One that vLLM keeps is tried again later, and keeps no other adapter waiting."""
        self._unload_at = None
        for name in sorted((await self._loras.served()).keys() - set(names)):
            try:
                await self._loras.unload(name)
                self._say(f"adapter {name} is no longer served")
            except AdapterFailed as failed:
                self._unload_at = self._clock() + UNLOAD_RETRY
                self._say(f"adapter {name} is not in the list, and vLLM does not unload it: {failed}")

    async def _serve(self, held: _Held, served: str | None) -> None:
        """Another path under the same name is loaded as soon as it is known to be good, not before."""
        name = held.adapter.name
        try:
            path = held.path or await self._prepare(held.adapter)
            if said := await self._problem(held, path):
                raise AdapterFailed(said)
            if served not in (None, str(path)):
                await self._loras.unload(name)
                served = None
            if served is None:
                await self._loras.load(name, path)
        except AdapterFailed as failed:
            self._failed(held, str(failed), served)
            return
        except OSError as error:
            self._failed(held, f"{error.strerror or error}. It is tried again; see the container's log.", served)
            return
        except Exception as error:  # noqa: BLE001 - other adapters and the base model are served whatever this one does
            self._say(f"adapter {name}: {_unexpected(error)}\n{_frames(error)}")
            self._failed(held, f"It cannot be checked or loaded: {_unexpected(error)}. {_REPORT_IT}", served)
            return
        held.path = path
        held.state = AdapterState(name, loaded=True)
        self._say(f"adapter {name} is served from {path}")

    async def _problem(self, held: _Held, path: Path) -> str | None:
        """What is wrong with its files."""
        if held.check is None:
            look = in_thread(lambda: adapter_files.problem(path, max_rank=self._max_rank, base=self._base()))
            held.check = asyncio.ensure_future(look)
        await asyncio.wait([held.check], timeout=FILES_SECONDS)
        if not held.check.done():
            return (
                f"The files in {path} could not be read within {FILES_SECONDS:.0f} s. Check the server of its volume."
            )
        check, held.check = held.check, None
        return check.result()

    def _failed(self, held: _Held, message: str, served: str | None) -> None:
        held.tries += 1
        held.try_at = self._clock() + min(LONGEST_RETRY, self._retry_seconds * 2.0 ** min(held.tries - 1, 10))
        if served is not None:
            message += " Until then the former adapter of this name answers."
        told = _cut(message, _ALL_MESSAGES // len(self._held))
        state = AdapterState(held.adapter.name, loaded=False, message=told)
        if state != held.state:
            self._say(f"adapter {state.name} cannot be served: {state.message}")
        held.state = state


def _frames(error: Exception) -> str:
    return "".join(traceback.format_tb(error.__traceback__)).rstrip()


def _unexpected(error: Exception) -> str:
    """The type and place of an error that nobody foresaw; not its text, which may quote anything."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"an unexpected {type(error).__name__} in {Path(frame.filename).name}, line {frame.lineno}"


def _is_loaded(held: _Held) -> bool:
    return held.state is not None and held.state.loaded


def _stays(held: _Held, adapter: Adapter) -> bool:
    return held.adapter == adapter and _is_loaded(held)


def _cut(message: str, most_bytes: int) -> str:
    """What fits into so many bytes of JSON."""
    text = clean(message)[:_LONGEST_MESSAGE]
    while len(json.dumps(text, ensure_ascii=False).encode()) > most_bytes:
        text = text[: len(text) * 7 // 8]
    return text


def _check(answer: Answer, what: str) -> None:
    if answer.status != 200:
        raise AdapterFailed(f"{what} answered {answer.status}: {answer.error}")
