"""The adapters that vLLM serves follow the list; a failed one is reported with a reason, and nothing else stops."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from llmservice_runtime.adapter_list import Adapter, to_json
from llmservice_runtime.contract import MAX_ADAPTERS, Phase, State
from llmservice_runtime.preflight import adapter_files
from llmservice_runtime.supervisor import adapters
from llmservice_runtime.supervisor.adapters import AdapterFailed, Adapters, LoraEndpoints
from llmservice_runtime.supervisor.client import Response

from tests.unit.runtime.adapter_folder import HIDDEN, write_adapter

BASE = {"hidden_size": HIDDEN, "num_hidden_layers": 2}
DEEP = "[" * 100_000 + "]" * 100_000


class Engine(LoraEndpoints):
    """vLLM's side of the conversation, in memory."""

    def __init__(self) -> None:
        super().__init__(1, {})
        self.loaded: dict[str, str] = {}
        self.deaf_to = self.keeps = ""

    async def served(self) -> dict[str, str]:
        return dict(self.loaded)

    async def load(self, name: str, path: Path) -> None:
        if name == self.deaf_to:
            raise OSError("no answer to POST /v1/load_lora_adapter within 300 s")
        self.loaded[name] = str(path)

    async def unload(self, name: str) -> None:
        if name == self.keeps:
            raise AdapterFailed("POST /v1/unload_lora_adapter answered 500: no")
        del self.loaded[name]


class World:
    """Adapters a, b and c, which lie where they should."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.engine, self.said = folder, Engine(), list[str]()
        self.now = 0.0
        self.list("a", "b", "c")
        self.adapters = Adapters(
            folder / "adapters.json",
            self.engine,
            self.prepare,
            max_rank=16,
            base=lambda: BASE,
            clock=lambda: self.now,
            retry_seconds=5,
            log=self.said.append,
        )

    def list(self, *names: str) -> None:
        for name in names:
            write_adapter(self.folder / name)
        (self.folder / "adapters.json").write_text(to_json([Adapter(name, f"pvc://c/{name}") for name in names]))

    async def prepare(self, adapter: Adapter) -> Path:
        return self.folder / adapter.name

    async def settled(self, seconds: float = 1000) -> dict[str, str]:
        """What each adapter that is not served says."""
        await self.adapters.reconcile()
        self.now += seconds
        state = self.adapters.with_adapters(State(Phase.SERVING))
        assert State.from_json(state.to_json()) == state
        return {adapter.name: adapter.message for adapter in state.adapters if not adapter.loaded}


async def planted(world: World, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception) -> None:
    """A defect in what is done for adapter b."""
    real_prepare, real_problem = world.prepare, adapter_files.problem

    async def prepare(adapter: Adapter) -> Path:
        if adapter.name == "b":
            raise error
        return await real_prepare(adapter)

    def look(folder: Path, **arguments: Any) -> str | None:
        if folder.name == "b":
            raise error
        return real_problem(folder, **arguments)

    if where == "source":
        monkeypatch.setattr(world.adapters, "_prepare", prepare)
    else:
        monkeypatch.setattr(adapter_files, "problem", look)


@pytest.mark.parametrize("where", ["source", "files"])
@pytest.mark.parametrize(
    "error",
    [TypeError("secret"), OverflowError("secret"), RecursionError("secret"), KeyError("secret"), ValueError("secret")],
    ids=lambda error: type(error).__name__,
)
async def test_a_defect_met_by_one_adapter_is_that_adapters_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    world = World(tmp_path)
    await planted(world, monkeypatch, where, error)
    failed = await world.settled()
    assert set(failed) == {"b"}
    assert f"an unexpected {type(error).__name__} in test_adapter_reconcile.py" in failed["b"]
    assert set(world.engine.loaded) == {"a", "c"}
    assert any("in prepare" in line or "in look" in line for line in world.said), "the log shows the calls"
    assert not any("secret" in line for line in [*world.said, failed["b"]])
    monkeypatch.undo()
    world.adapters._prepare = world.prepare
    assert not await world.settled(), "and it is tried again"


async def test_one_that_the_engine_does_not_answer_about(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.engine.deaf_to = "a"
    failed = await world.settled()
    assert set(failed) == {"a"}
    assert "no answer" in failed["a"]
    assert set(world.engine.loaded) == {"b", "c"}


async def test_one_that_the_engine_keeps_does_not_keep_others_waiting(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.settled()
    world.engine.keeps = "a"
    world.list("b", "d")
    assert not await world.settled()
    assert set(world.engine.loaded) == {"a", "b", "d"}
    assert any("adapter a was removed from the list, but vLLM does not unload it" in line for line in world.said)
    world.engine.keeps = ""
    await world.settled()
    assert set(world.engine.loaded) == {"b", "d"}


async def test_one_whose_volume_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, released, looks = World(tmp_path), threading.Event(), list[str]()
    real = adapter_files.problem

    def look(folder: Path, **arguments: Any) -> str | None:
        looks.append(folder.name)
        if folder.name == "a":
            released.wait(60)
        return real(folder, **arguments)

    monkeypatch.setattr(adapter_files, "problem", look)
    # Long enough for b and c where threads are slow to start: only a is waited for until it ends.
    monkeypatch.setattr("llmservice_runtime.supervisor.adapters.FILES_SECONDS", 2)
    for _ in range(2):
        failed = await world.settled()
        assert set(failed) == {"a"}
        assert "Check the server of its volume" in failed["a"]
    assert looks.count("a") == 1, "a thread that waits is not joined by another"
    assert set(world.engine.loaded) == {"b", "c"}
    released.set()
    monkeypatch.setattr("llmservice_runtime.supervisor.adapters.FILES_SECONDS", 60)
    assert not await world.settled()


LISTS = {
    "an object": '{"name":"a"}',
    "a name that is a list": '[{"name":["a"],"uri":"hf://a/b"}]',
    "a path that is a number": '[{"name":"a","uri":"hf://a/b","path":7}]',
    "a name twice": '[{"name":"a","uri":"x"},{"name":"a","uri":"y"}]',
    "too many": json.dumps([{"name": str(n), "uri": "x"} for n in range(MAX_ADAPTERS + 1)]),
    "deep": DEEP,
}


@pytest.mark.parametrize("case", [*LISTS, "vanished"])
async def test_a_malformed_or_missing_list_takes_nothing_away(tmp_path: Path, case: str) -> None:
    world = World(tmp_path)
    await world.settled()
    if case == "vanished":
        (tmp_path / "adapters.json").unlink()
    else:
        (tmp_path / "adapters.json").write_text(LISTS[case])
    for _ in range(2):
        assert not await world.settled()
    assert set(world.engine.loaded) == {"a", "b", "c"}
    assert sum("adapters not reconciled" in line for line in world.said) == (case != "vanished"), "logged once"


async def test_a_failed_replacement_leaves_the_former_adapter(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.settled()
    write_adapter(tmp_path / "elsewhere" / "b", rank=64)
    former, world.folder = world.engine.loaded["b"], tmp_path / "elsewhere"
    (tmp_path / "adapters.json").write_text(to_json([Adapter("b", "pvc://c/other")]))
    assert "the previous adapter of this name is served" in (await world.settled())["b"]
    assert world.engine.loaded == {"b": former}


@pytest.mark.parametrize(
    "body", ["[]", '{"data":5}', '{"data":[5]}', '{"data":[{"id":[],"parent":"m","root":1}]}', DEEP, "", '{"data":[{}']
)
async def test_an_answer_of_the_engine_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    async def answered(*args: object, **arguments: object) -> Response:
        return Response(200, body)

    world = World(tmp_path)
    monkeypatch.setattr(adapters, "http_request", answered)
    monkeypatch.setattr(world.adapters, "_endpoints", LoraEndpoints(1, {}))
    await world.settled()
    assert any("adapters not reconciled" in line for line in world.said)
    monkeypatch.undo()
    assert not await world.settled()
