"""Cron expressions and time zones of spec.scaling.autoscaling.schedule."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as some
from llmservice_api.errors import InvalidSpec
from llmservice_api.lifecycle import ever_comes, is_cron, is_time_zone
from llmservice_api.service import LLMService

from tests.unit.decide_world import World, an_llmservice, spec


def service(*schedule: dict[str, Any]) -> dict[str, Any]:
    day = {"start": "0 8 * * *", "end": "0 20 * * *"}
    return an_llmservice(
        spec(scaling={"autoscaling": {"maxReplicas": 2, "schedule": [day | each for each in schedule]}})
    )


@pytest.mark.parametrize("cron", ["0 8 * * *", "*/15 0-6,22 1 JAN-MAR SUN", "0 0 L * *", "0 0 LW * *", "0 0 * * 5#2"])
def test_a_cron_expression(cron: str) -> None:
    LLMService.from_object(service({"start": cron}))


BAD = ["60 8 * * *", "0 24 * * *", "0 8 32 * *", "0 8 * 13 *", "0 8 * * 8", "8am * * * *", "0 8 30 2 *", "5-1 8 * * *"]


@pytest.mark.parametrize("cron", BAD)
def test_what_is_no_cron_expression_is_refused_with_its_field(cron: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        LLMService.from_object(service({}, {"end": cron}))
    (problem,) = refused.value.problems
    assert problem.field == "spec.scaling.autoscaling.schedule[1].end"
    assert cron in problem.message
    assert "five fields" in problem.remedy


NEVER = ["* * */31 * 2#5", "0 0 */31 * 1#2", "0 0 */30 4 5#2", "0 0 */31 2 7L"]
RARE = ["0 0 29 2 *", "0 0 29 2 */7", "0 0 */31 * 5", "0 0 LW * */5", "0 0 L 2 */7", "30 2 * 3 7L"]


@pytest.mark.parametrize("cron", NEVER)
def test_a_time_that_never_comes_is_refused_with_its_field(cron: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        LLMService.from_object(service({}, {"start": cron}))
    (problem,) = refused.value.problems
    assert problem.field == "spec.scaling.autoscaling.schedule[1].start"
    assert problem.message == f"{cron} is a time that never comes."


@pytest.mark.parametrize("cron", RARE)
def test_a_time_that_comes_seldom_is_one(cron: str) -> None:
    LLMService.from_object(service({"end": cron}))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5"])
def test_a_time_zone(zone: str) -> None:
    LLMService.from_object(service({"timeZone": zone}))


@pytest.mark.parametrize("zone", ["Europe/Bonn", "Europe", "CEST", "../etc/passwd", "/etc/localtime", "a" * 64])
def test_what_is_no_time_zone_is_refused_with_its_field(zone: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        LLMService.from_object(service({"timeZone": zone}))
    assert [problem.field for problem in refused.value.problems] == ["spec.scaling.autoscaling.schedule[0].timeZone"]


def test_the_status_says_so_and_what_serves_goes_on() -> None:
    world = World(an_llmservice(spec(scaling={"replicas": 1, "autoscaling": {"maxReplicas": 2}})))
    world.serve()
    world.edit(scaling=service({"start": "60 8 * * *"})["spec"]["scaling"] | {"replicas": 1})
    world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert "schedule[0].start" in world.message("Accepted")
    assert world.condition("Available")[0] == "True"
    assert world.deployment["spec"]["replicas"] == 1


FIELDS = some.text("0123456789*/,-LW#JANSUN?²", min_size=1, max_size=12)


@given(some.one_of(some.lists(FIELDS, min_size=5, max_size=5).map(" ".join), some.text(max_size=40)))
def test_any_text_is_a_cron_expression_or_is_none(text: str) -> None:
    is_cron(text)


DAYS = some.sampled_from(["*", "*/31", "*/30", "*/9", "29", "30", "31", "1-7", "L", "LW"])
MONTHS = some.sampled_from(["*", "2", "4,6,9,11", "*/5", "2-3"])
WEEKDAYS = some.sampled_from(["*", "*/7", "1#5", "5#2", "7L", "2#1,3#5", "1-5", "6"])


@settings(deadline=None)
@given(some.tuples(DAYS, MONTHS, WEEKDAYS).map(" ".join))
def test_a_time_comes_as_a_search_of_fifty_years_finds_it(days: str) -> None:
    expression = f"0 0 {days}"
    if is_cron(expression):
        found = next(CronSim(expression, datetime(2026, 1, 1, tzinfo=UTC)), None)
        assert ever_comes(expression) == (found is not None)


@given(some.text(max_size=64))
def test_any_text_is_a_time_zone_or_is_none(text: str) -> None:
    is_time_zone(text)
