"""A malformed adapter is one failed adapter: with a reason and a remedy, and nothing else stops."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_runtime import contract
from llmservice_runtime.adapters import adapter_files, adapter_list, adapters
from llmservice_runtime.adapters.adapter_files import problem
from llmservice_runtime.adapters.adapter_list import Adapter, to_json
from llmservice_runtime.adapters.adapters import AdapterFailed, Adapters, LoraEndpoints
from llmservice_runtime.bounded_json import Refused
from llmservice_runtime.contract import MAX_ADAPTERS, Phase, State
from llmservice_runtime.preflight import mounts
from llmservice_runtime.supervisor.loopback import Response

from tests.unit.adapter_folder import HIDDEN, write_adapter
from tests.unit.hostile import texts

BASE = {"hidden_size": HIDDEN, "num_hidden_layers": 2}
CONFIG = {
    "peft_type": "LORA",
    "r": 8,
    "lora_alpha": 16,
    "target_modules": ["q_proj"],
    "rank_pattern": {"q_proj": 8},
    "alpha_pattern": {"q_proj": 0.5},
}
LORA_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
TENSOR = {"dtype": "F32", "shape": [8, 64], "data_offsets": [0, 2048]}
HEADER = {"__metadata__": {"format": "pt"}, LORA_A: TENSOR}
DEEP = "[" * 100_000 + "]" * 100_000


def written(folder: Path, config: str | None = None, header: str | bytes | None = None, size: int = 2048) -> Path:
    """An adapter of these texts; by default a good one."""
    folder.mkdir(exist_ok=True)
    config = json.dumps(CONFIG) if config is None else config
    (folder / "adapter_config.json").write_text(config, encoding="utf-8", errors="surrogatepass")
    text = json.dumps(HEADER) if header is None else header
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    (folder / "adapter_model.safetensors").write_bytes(len(data).to_bytes(8, "little") + data + bytes(size))
    return folder


def config(**changed: Any) -> str:
    return json.dumps(CONFIG | changed)


def header(**changed: Any) -> str:
    return json.dumps({LORA_A: TENSOR | changed})


CONFIGS = [
    pytest.param("[]", "not an object", id="a list"),
    pytest.param("{", "not JSON", id="cut short"),
    pytest.param(DEEP, "nested deeper", id="deep"),
    pytest.param(config(r=True), "r is not an integer", id="a rank that is true"),
    pytest.param(config(r="8"), "r is not an integer", id="a rank that is text"),
    pytest.param(config(r=float("nan")), "r is missing", id="a rank that is no number"),
    pytest.param(config(r=10**400), "r is missing", id="a rank without end"),
    pytest.param(config(r=-1), "r is not an integer from 1", id="a rank below one"),
    pytest.param(config().replace("16", "1e400"), "lora_alpha is missing", id="an infinite alpha"),
    pytest.param(config(target_modules=5), "target_modules is not a list", id="targets that are a number"),
    pytest.param(config(target_modules={"q_proj": 1}), "target_modules is not a list", id="targets that are an object"),
    pytest.param(config(target_modules=[["q_proj"]]), "target_modules is not text", id="targets that are lists"),
    pytest.param(config(rank_pattern=[8]), "rank_pattern is not an object", id="ranks that are a list"),
    pytest.param(
        config(rank_pattern={"q": [8]}), "rank_pattern.q is not an integer", id="a module's rank that is none"
    ),
    pytest.param(config(rank_pattern={"(a+)+b": 8}), "may take very long", id="an expression that never ends"),
    pytest.param(config(alpha_pattern={"(a|a)*": 8}), "may take very long", id="another one"),
    pytest.param(config(alpha_pattern={"a?" * 40: 8}), "may take very long", id="optional parts"),
    pytest.param(config(alpha_pattern={"(a|a)" * 40: 8}), "may take very long", id="alternatives"),
    pytest.param(config(peft_type=["LORA"]), "peft_type is not text", id="a kind that is a list"),
    pytest.param(config(peft_type="\ud800"), "not valid Unicode", id="half a surrogate pair"),
    pytest.param('{"r": 8, "x": "' + "x" * (1 << 20) + '"}', "longer than", id="a mebibyte"),
    pytest.param("[" + "0," * 200_000 + "0]", "more than 100000 parts", id="many parts"),
]
HEADERS = [
    pytest.param(header(shape=5), "shape is not a list of integers", id="a shape that is a number"),
    pytest.param(header(shape=["8", 64]), "shape is not a list of integers", id="a shape of texts"),
    pytest.param(header(shape=[True, 64]), "shape is not a list of integers", id="a shape of truths"),
    pytest.param(header(shape=[-8, 64]), "shape is not a list of integers", id="a negative shape"),
    pytest.param(header(shape=[2**40, 2**40]), "more values than bytes", id="a shape without memory for it"),
    pytest.param(header(shape=[512, 1]).replace("2048", "1e400"), "out of range", id="an infinite offset"),
    pytest.param(header(data_offsets=[0, 2048.0]), "data_offsets is not a list of integers", id="an offset of a half"),
    pytest.param(header(data_offsets=[2048]), "data_offsets is not a list", id="one offset"),
    pytest.param(header(data_offsets={"0": 1}), "data_offsets is not a list", id="offsets that are an object"),
    pytest.param(header(dtype=7), "dtype is not text", id="a type that is a number"),
    pytest.param(json.dumps({LORA_A: [1]}), "is not an object", id="a tensor that is a list"),
    pytest.param(json.dumps({"x" * 2000: TENSOR}), "longer than 1024", id="a name without end"),
    pytest.param(json.dumps([HEADER]), "not an object", id="a list"),
    pytest.param(DEEP, "nested deeper", id="deep"),
    pytest.param(b"\xff\xfe{}", "not UTF-8", id="bytes"),
    pytest.param(json.dumps(HEADER).replace("F32", "\\ud800"), "not valid Unicode", id="half a surrogate pair"),
    pytest.param(b"{}" + b" " * (25 << 20), "its header has 26214402 bytes", id="a header of 25 MiB"),
    pytest.param("[" + "0," * 4_000_001 + "0]", "more than 4000000 parts", id="many parts"),
    pytest.param(header(shape=[32, 64], data_offsets=[0, 8192]), "rank 32 exceeds", id="a rank that is hidden"),
]


@pytest.mark.parametrize(("text", "said"), CONFIGS)
def test_a_malformed_config(tmp_path: Path, text: str, said: str) -> None:
    found = problem(written(tmp_path / "a", config=text), max_rank=16, base=BASE) or "nothing"
    assert said in found
    assert "save_pretrained" in found or "Its uri must name the folder" in found


@pytest.mark.parametrize(("text", "said"), HEADERS)
def test_a_malformed_header(tmp_path: Path, text: str | bytes, said: str) -> None:
    size = 8192 if said.startswith("rank") else 2048
    found = problem(written(tmp_path / "a", header=text, size=size), max_rank=16, base=BASE) or "nothing"
    assert said in found
    assert "copy it again" in found or "spec.lora.maxLoraRank" in found


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def to_link(target: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return change


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(to_folder, id="a folder"),
        pytest.param(to_fifo, id="a FIFO"),
        pytest.param(to_link("/dev/zero"), id="a device"),
        pytest.param(to_link("nowhere"), id="a link to nothing"),
        pytest.param(to_link("adapter_config.json"), id="a link to itself"),
        pytest.param(to_link("x" * 300), id="a link to a name that is too long"),
    ],
)
def test_what_is_no_file(tmp_path: Path, change: Callable[[Path], None], name: str) -> None:
    folder = written(tmp_path / "a")
    change(folder / name)
    found: list[str | None] = []
    look = threading.Thread(target=lambda: found.append(problem(folder, max_rank=16, base=BASE)), daemon=True)
    look.start()
    look.join(20)
    assert found, "it waits for somebody who writes into the FIFO"
    assert name in (found[0] or "")


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    assert "There is no folder" in (problem(tmp_path / "a", max_rank=16, base=BASE) or "")


@pytest.mark.parametrize("path", ["x" * 300, "a/" * 3000, "a\0b"])
def test_a_path_that_cannot_be(tmp_path: Path, path: str) -> None:
    assert problem(tmp_path / path, max_rank=16, base=BASE)


def test_files_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    folder = written(tmp_path / "a")
    monkeypatch.setattr(adapter_files, "_resolved", refuse)
    found = problem(folder, max_rank=16, base=BASE) or ""
    assert "Permission denied" in found


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_links_stay_in_the_volume_of_the_adapter(tmp_path: Path, name: str) -> None:
    """As the cache of a hub has them: to another folder of the volume, and not to the volume of somebody else."""
    volume, other = tmp_path / "volume", tmp_path / "other"
    for each in (volume / "blobs", volume / "snapshots" / "a", other):
        each.mkdir(parents=True)
    folder = written(volume / "snapshots" / "a")

    def mount(path: Path) -> Path:
        return next((place for place in (volume, other) if path.is_relative_to(place)), Path("/"))

    (folder / name).rename(volume / "blobs" / "x")
    (folder / name).symlink_to(Path("..") / ".." / "blobs" / "x")
    assert problem(folder, max_rank=16, base=BASE, mount=mount) is None
    (volume / "blobs" / "x").rename(other / "x")
    (folder / name).unlink()
    (folder / name).symlink_to(other / "x")
    assert "leaves the volume" in (problem(folder, max_rank=16, base=BASE, mount=mount) or "")


def test_what_the_fetch_container_linked_lies_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links and cache are two volumes of a pod."""
    links, cache, other = tmp_path / "artifacts", tmp_path / "models", tmp_path / "other"
    monkeypatch.setattr(contract, "ARTIFACTS_DIR", str(links))
    monkeypatch.setattr(contract, "MODELS_DIR", str(cache))

    def mount(path: Path) -> Path:
        return next((place for place in (links, cache, other) if path.is_relative_to(place)), Path("/"))

    for place, is_fine in ((cache, True), (other, False)):
        blobs, folder = place / "blobs", links / place.name
        blobs.mkdir(parents=True)
        folder.mkdir(parents=True)
        for file in written(tmp_path / f"of-{place.name}").iterdir():
            file.rename(blobs / file.name)
            (folder / file.name).symlink_to(blobs / file.name)
        assert (problem(folder, max_rank=16, base=BASE, mount=mount) is None) is is_fine


def test_mounts_are_those_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mounts.mount_of(Path("/proc/self/status")) == Path("/proc")
    listed = tmp_path / "mountinfo"
    listed.write_text("1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 /x /the\\040volume rw - ext4 b rw\n")
    monkeypatch.setattr(mounts, "_MOUNTS", listed)
    assert mounts.mount_of(Path("/the volume/a/b")) == Path("/the volume")
    assert mounts.mount_of(Path("/the/volume")) == Path("/")


LISTED = [{"name": "a", "uri": "pvc://c/a", "path": "/a"}, {"name": "b", "uri": "hf://a/b"}]


@given(texts(CONFIG), texts(HEADER), texts(LISTED), st.integers(0, 4096))
def test_whatever_is_written_the_answer_is_a_text_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, first: str, second: str, third: str, size: int
) -> None:
    folder = written(tmp_path_factory.getbasetemp() / "fuzzed", first, second, size)
    found = problem(folder, max_rank=16, base=BASE)
    assert found is None or found.endswith((".", "uri."))
    try:
        listed = adapter_list.from_json(third)
    except Refused:
        return
    assert len(listed) <= MAX_ADAPTERS
    assert all(isinstance(adapter.path, str | None) for adapter in listed)


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
    assert f"an unexpected {type(error).__name__} in test_runtime_adapter_hostile.py" in failed["b"]
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
    monkeypatch.setattr("llmservice_runtime.adapters.adapters.FILES_SECONDS", 0.05)
    for _ in range(2):
        failed = await world.settled()
        assert set(failed) == {"a"}
        assert "Check the server of its volume" in failed["a"]
    assert looks.count("a") == 1, "a thread that waits is not joined by another"
    assert set(world.engine.loaded) == {"b", "c"}
    released.set()
    monkeypatch.setattr("llmservice_runtime.adapters.adapters.FILES_SECONDS", 20)
    assert not await world.settled()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"name":"a"}', id="an object"),
        pytest.param('[{"name":["a"],"uri":"hf://a/b"}]', id="a name that is a list"),
        pytest.param('[{"name":"a","uri":{}}]', id="a uri that is an object"),
        pytest.param('[{"name":"a","uri":"hf://a/b","path":7}]', id="a path that is a number"),
        pytest.param('[{"name":"a","uri":"x"},{"name":"a","uri":"y"}]', id="a name twice"),
        pytest.param(json.dumps([{"name": str(n), "uri": "x"} for n in range(MAX_ADAPTERS + 1)]), id="too many"),
        pytest.param(DEEP, id="deep"),
    ],
)
async def test_a_malformed_list_takes_nothing_away(tmp_path: Path, text: str) -> None:
    world = World(tmp_path)
    await world.settled()
    (tmp_path / "adapters.json").write_text(text)
    assert not await world.settled()
    assert set(world.engine.loaded) == {"a", "b", "c"}
    assert any("adapters not reconciled" in line for line in world.said)


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
