"""Options of the run. The same seed makes the same plan; times and chances of the network differ."""

from __future__ import annotations

import random

import pytest

from tests.e2e.conftest import cluster, pytest_terminal_summary, record

__all__ = ["cluster", "pytest_terminal_summary", "record"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", default="", help="of the chaos run; printed where it is not given")
    parser.addoption("--minutes", type=float, default=3.0, help="of the chaos run, without its aftermath")


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    given: str = pytestconfig.getoption("--seed")
    return int(given) if given else random.SystemRandom().randrange(10**6)


@pytest.fixture(scope="session")
def seconds(pytestconfig: pytest.Config) -> float:
    minutes: float = pytestconfig.getoption("--minutes")
    return 60 * minutes
