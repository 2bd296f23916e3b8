"""A mount that does not answer keeps one step waiting, and not the supervisor: it goes on to tell how it is."""

from __future__ import annotations

import signal
from pathlib import Path

from llmservice_runtime.adapter_list import Adapter, digest, to_json

from tests.unit.runtime.adapter_folder import write_adapter
from tests.unit.runtime.runtime_harness import Server, supervised


def stalled(file: Path, text: str = "{}") -> Path:
    """A file that whoever opens it waits for."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    _mark(file).touch()
    return file


def release(file: Path) -> None:
    """The mount answers."""
    _mark(file).unlink()


def _mark(file: Path) -> Path:
    return file.with_name(f"{file.name}.stalled")


async def answers_for(server: Server, seconds: float) -> None:
    """It answers, all the while."""
    await server.until(lambda state: not state.ready)
    await server.passed(seconds)
    assert await server.probe("/livez") == 200, "".join(server.log)


async def test_the_models_folder_answers_late(tmp_path: Path) -> None:
    config = stalled(tmp_path / "model" / "config.json")
    async with supervised(tmp_path, flags=("--model", str(config.parent)), late=config) as server:
        await answers_for(server, 0.5)
        release(config)
        await server.ready()


async def test_it_can_be_told_to_end_meanwhile(tmp_path: Path) -> None:
    config = stalled(tmp_path / "model" / "config.json")
    async with supervised(tmp_path, flags=("--model", str(config.parent)), late=config) as server:
        await answers_for(server, 0.2)
        server.signal(signal.SIGTERM)
        assert await server.ended() == 0


async def test_an_adapters_folder_answers_late(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "one")
    config = folder / "adapter_config.json"
    stalled(config, config.read_text())
    listed = to_json([Adapter("one", "pvc://claim/one", str(folder))])
    adapters = tmp_path / "adapters.json"
    adapters.write_text(listed)
    async with supervised(tmp_path, adapters_file=str(adapters), late=config) as server:
        await server.until(lambda state: state.adapters_hash == digest(listed))
        assert await server.probe("/livez") == 200
        release(config)
        await server.until(lambda state: state.ready and state.adapters[0].loaded)
