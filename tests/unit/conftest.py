"""How many inputs the property tests draw, which tests share a process, and what many of them start from."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from tests.unit.api_server import ApiServer
    from tests.unit.cli_world import Command

settings.register_profile(
    "unit",
    max_examples=100,
    deadline=None,
    derandomize=True,  # what passed once passes in every clone; `full` draws other inputs each time
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
        HealthCheck.function_scoped_fixture,
    ],
)
settings.register_profile("full", settings.get_profile("unit"), max_examples=2_000, derandomize=False)
settings.load_profile("unit")  # another one: pytest --hypothesis-profile=full


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("vllm") is None:
        for item in items:
            if item.get_closest_marker("vllm") is not None:
                item.add_marker(pytest.mark.skip(reason="needs the vllm dependency group"))


@pytest.fixture(scope="module", autouse=True)
def _garbage_is_looked_for_in_what_this_file_makes() -> None:
    """Not, at each full collection, in all tests, modules and vLLM."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_cached() -> None:
    """A test that replaces a builder must not get what another one rendered of an equal spec."""
    from llmservice_api import service

    service._results.clear()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-decisions", action="store_true", help="write fixtures/decisions anew")


@pytest.fixture(autouse=True)
def decisions_are_those_recorded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of the tests whose module has a file of them; without xdist where they are written."""
    from tests.unit.decision_goldens import RECORDER, path, read, write

    file = path(request.module.__name__)
    if file is None:
        yield
        return
    RECORDER.lines, RECORDER.is_on = [], True
    yield
    RECORDER.is_on = False
    if request.config.getoption("--record-decisions", default=False):
        write(file, read(file) | {request.node.name: RECORDER.lines})
    else:
        assert RECORDER.lines == read(file).get(request.node.name, []), f"not as {file.name} has it"


@pytest.fixture
def llmservice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    from tests.unit.cli_world import Command

    return Command(tmp_path, capsys)


@pytest.fixture
async def api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    """Of the kubeconfig, with the namespace `team`."""
    from tests.support.http_servers import cluster
    from tests.unit.api_server import ApiServer

    made = ApiServer()
    async with cluster(made.answer, tmp_path, monkeypatch):
        yield made


class VLLMInOneProcess(LoadFileScheduling):  # type: ignore[misc]
    """Gives each file to one process, and all files that need vLLM to the same one: importing it takes 10 s of CPU."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "vllm" if _needs_vllm(self.config.rootpath / path) else path


@cache
def _needs_vllm(path: Path) -> bool:
    return "pytest.mark.vllm" in path.read_text()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return VLLMInOneProcess(config, log) if config.getoption("dist") == "loadfile" else None
