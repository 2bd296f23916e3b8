"""The stand-in does what vLLM does: both go through the same cases, and what is recorded must come out of both.

The record is vLLM's own: `python -m tests.e2e.test_stand_in` writes it anew, with the real engine.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from localcluster.tinymodel.cache import cached_model
from tests.support import contract_cases as cases
from tests.support import contract_drain as drains
from tests.support.vllm_process import REAL, STAND_IN, Kind, Server

pytestmark = pytest.mark.parallel

RECORD = Path(__file__).with_name("recorded_vllm.json")
ONE_SERVER = {
    "answers": cases.answers,
    "counters": cases.counters,
    "full queue": cases.full_queue,
    "keep-alive": cases.keep_alive,
    **drains.ONE_SERVER,
}
LIVES = {**cases.LIVES, **drains.LIVES}
KINDS = [pytest.param(STAND_IN, id="stand-in"), pytest.param(REAL, id="vllm", marks=pytest.mark.full)]


@pytest.fixture(scope="module")
def recorded() -> Any:
    return json.loads(RECORD.read_text())


@pytest.fixture(scope="module")
def model() -> str:
    return str(cached_model(print))


@pytest.fixture(scope="module", params=KINDS)
def serving(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model: str) -> Iterator[Server]:
    with cases.up(request.param, tmp_path_factory.mktemp("serving"), model, "--api-key", cases.KEY) as server:
        yield server


@pytest.mark.parametrize("case", ONE_SERVER)
def test_a_server_answers_as_recorded(serving: Server, recorded: Any, case: str) -> None:
    seen, wanted = as_json(ONE_SERVER[case](serving)), recorded[case]
    differing = {name for name in seen.keys() | wanted.keys() if seen.get(name) != wanted.get(name)}
    assert {name: seen.get(name) for name in differing} == {name: wanted.get(name) for name in differing}


@pytest.fixture(scope="module", params=KINDS)
def lives(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model: str
) -> Iterator[Mapping[str, Future[cases.Observation]]]:
    """All of them, at once where they take next to nothing."""
    kind: Kind = request.param
    folder = tmp_path_factory.mktemp("lives")
    pool = ThreadPoolExecutor(4 if kind is STAND_IN else 1)
    yield {name: pool.submit(live, kind, folder, model) for name, live in LIVES.items()}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("life", LIVES)
def test_a_life_ends_as_recorded(lives: Mapping[str, Future[cases.Observation]], life: str, recorded: Any) -> None:
    assert as_json(lives[life].result()) == recorded[life]


def as_json(seen: Any) -> Any:
    """As it is after it was written and read."""
    return json.loads(json.dumps(seen))


def main() -> None:
    """Record what the real engine does: all of it, or the cases that are named."""
    names = sys.argv[1:] or [*ONE_SERVER, *LIVES]
    model = str(cached_model(print))
    record: dict[str, Any] = json.loads(RECORD.read_text()) if sys.argv[1:] else {}
    with tempfile.TemporaryDirectory() as folder:
        if asked := {case: look for case, look in ONE_SERVER.items() if case in names}:
            with cases.up(REAL, Path(folder), model, "--api-key", cases.KEY) as server:
                record |= {case: look(server) for case, look in asked.items()}
        for life in (life for life in LIVES if life in names):
            print(life, flush=True)
            record[life] = LIVES[life](REAL, Path(folder), model)
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
