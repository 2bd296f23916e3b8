"""Options of the run."""

from __future__ import annotations

import random
from typing import cast, get_args

import pytest

from tests.chaos.actions import Engine
from tests.e2e.conftest import cluster, pytest_terminal_summary, record

__all__ = ["cluster", "pytest_terminal_summary", "record"]

# What is the cluster's own is not repeated: which requests the operator makes, which pod a number picks.
SEED = """
Of the chaos run; drawn, and printed, where it is not given. The same seed takes the same steps in the same order, none
before its time, and does the same to the same request of the operator: to the third write of one path, for example, if
that comes in the same storm. When requests come, and which, is up to the cluster: runs of a seed are alike, not equal.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", default="", help=SEED)
    parser.addoption("--minutes", type=float, default=3.0, help="of the chaos run, without its aftermath")
    parser.addoption("--engine", choices=get_args(Engine), default="stand-in", help="of one of the services under load")


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    given: str = pytestconfig.getoption("--seed")
    return int(given) if given else random.SystemRandom().randrange(10**6)


@pytest.fixture(scope="session")
def seconds(pytestconfig: pytest.Config) -> float:
    minutes: float = pytestconfig.getoption("--minutes")
    return 60 * minutes


@pytest.fixture(scope="session")
def engine(pytestconfig: pytest.Config) -> Engine:
    return cast(Engine, pytestconfig.getoption("--engine"))
