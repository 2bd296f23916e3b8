"""Plans are fast enough to be made again for every service. CPU time: other work on the machine counts little."""

from __future__ import annotations

from benchmarks.plan import LIMITS, measure, services


def test_one_plan_and_a_thousand() -> None:
    figures = measure(100)
    assert {name: figures[name] for name, limit in LIMITS.items() if figures[name] >= limit} == {}


def test_services_differ() -> None:
    """The figures are not those of one model that was planned a hundred times."""
    made = list(services(100))
    assert len({repr(service) for service in made}) == 100
    assert len({service.config["model_type"] for service in made}) > 2
