"""Which bounds are in force when: spec.scaling.autoscaling.schedule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st
from llmservice_activator import demand
from llmservice_activator.demand import ReplicaBounds
from llmservice_api.lifecycle import Autoscaling


def autoscaling(*entries: dict[str, Any], least: int = 1, most: int = 8) -> Autoscaling:
    raw = {"minReplicas": least, "maxReplicas": most, "schedule": list(entries)}
    return Autoscaling.model_validate(raw, by_alias=True, by_name=False)


OFFICE = {"start": "0 8 * * 1-5", "end": "0 20 * * 1-5", "minReplicas": 3}
NIGHT = {"start": "0 22 * * *", "end": "0 6 * * *", "maxReplicas": 2}
BERLIN = {**OFFICE, "timeZone": "Europe/Berlin"}
ALWAYS = {"start": "* * * * *", "end": "0 0 29 2 *", "minReplicas": 4}


@pytest.mark.parametrize(
    ("entries", "at", "min_replicas", "most"),
    [
        ([], "2026-11-23T12:00", 1, 8),
        ([OFFICE], "2026-11-23T07:59", 1, 8),  # a Monday
        ([OFFICE], "2026-11-23T08:00", 3, 8),
        ([OFFICE], "2026-11-23T08:00:59", 3, 8),
        ([OFFICE], "2026-11-23T19:59:59", 3, 8),
        ([OFFICE], "2026-11-23T20:00", 1, 8),
        ([OFFICE], "2026-11-22T12:00", 1, 8),  # a Sunday
        ([NIGHT], "2026-11-23T23:30", 1, 2),
        ([NIGHT], "2026-11-24T05:59", 1, 2),
        ([NIGHT], "2026-11-24T06:00", 1, 8),
        ([BERLIN], "2026-11-23T07:00", 3, 8),  # UTC+1 in winter
        ([BERLIN], "2026-07-20T06:00", 3, 8),  # UTC+2 in summer
        ([BERLIN], "2026-07-20T18:00", 1, 8),
        # The first entry whose time it is holds.
        ([OFFICE, ALWAYS], "2026-11-23T12:00", 3, 8),
        ([OFFICE, ALWAYS], "2026-11-23T21:00", 4, 8),
        # The upper bound holds against a lower one above it.
        ([{**NIGHT, "minReplicas": 5}], "2026-11-23T23:30", 2, 2),
        # A time that begins as it ends is none.
        ([{**OFFICE, "end": OFFICE["start"]}], "2026-11-23T12:00", 1, 8),
    ],
)
def test_bounds_in_force(entries: list[dict[str, Any]], at: str, min_replicas: int, most: int) -> None:
    now = datetime.fromisoformat(at).replace(tzinfo=UTC)
    assert demand.bounds(autoscaling(*entries), now) == ReplicaBounds(min_replicas, most, 8)


SPRING = {"timeZone": "Europe/Berlin", "minReplicas": 3}
"""On 2026-03-29 the clock goes from 2:00 to 3:00, on 2026-10-25 from 3:00 to 2:00."""


@pytest.mark.parametrize(
    ("start", "end", "at", "min_replicas"),
    [
        ("30 2 * * *", "0 9 * * *", "2026-03-29T00:59", 1),
        ("30 2 * * *", "0 9 * * *", "2026-03-29T01:00", 3),
        ("*/30 2 * 3 7L", "0 9 * * *", "2026-03-29T01:00", 3),  # a time that the clock skips each year
        ("*/30 2 * 3 7L", "0 9 * * *", "2026-03-29T07:00", 1),
        ("30 1 * * *", "0 9 * * *", "2026-10-25T00:30", 3),
        ("30 1 * * *", "0 9 * * *", "2026-10-25T01:30", 3),
        ("0 22 * * *", "0 4 * * *", "2026-10-25T02:59", 3),
        ("0 22 * * *", "0 4 * * *", "2026-10-25T03:00", 1),
    ],
)
def test_the_clock_on_the_wall_holds(start: str, end: str, at: str, min_replicas: int) -> None:
    now = datetime.fromisoformat(at).replace(tzinfo=UTC)
    entry = autoscaling(SPRING | {"start": start, "end": end})
    assert demand.bounds(entry, now).min_replicas == min_replicas


@given(st.lists(st.integers(1_704_067_200, 1_893_456_000), min_size=2, max_size=12), st.integers(0, 200))
def test_what_is_kept_of_an_expression_is_what_a_search_finds(seconds: list[int], number: int) -> None:
    """For any order of times: the clock of a machine may be put back."""
    cron = ["0 8 * * 1-5", "*/20 7 29 2 *", "0 0 L * *", "59 23 31 12 *", "* * * * *"][number % 5]
    times = demand.Times(cron)
    for second in [*seconds, seconds[0] + 60, seconds[0] + 3600]:
        now = datetime.fromtimestamp(second, UTC).replace(second=0)
        assert times.last(now) == next(CronSim(cron, now + timedelta(minutes=1), reverse=True), None)


def test_a_day_of_minutes_searches_once_for_each_time_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []

    def search(cron: str, *rest: Any, **named: Any) -> CronSim:
        searched.append(cron)
        return CronSim(cron, *rest, **named)

    monkeypatch.setattr(demand, "CronSim", search)
    entry = autoscaling(OFFICE | {"timeZone": "Asia/Kathmandu"})
    for minute in range(24 * 60):
        demand.bounds(entry, datetime(2026, 11, 23, tzinfo=UTC) + timedelta(minutes=minute))
    assert len(searched) <= 2 * 2 * 2, "the last and the next time of start and end, which come once a day"


def test_the_most_ever_is_over_all_entries() -> None:
    found = demand.bounds(autoscaling({**OFFICE, "maxReplicas": 20}), datetime(2026, 11, 22, tzinfo=UTC))
    assert found == ReplicaBounds(1, 8, 20)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({**OFFICE, "start": "61 8 * * *"}, "'61 8 * * *' is not a schedule"),
        ({**OFFICE, "end": "0 0 31 2 *"}, "'0 0 31 2 *' is not a schedule"),
        ({**OFFICE, "end": "0 0 L-5 * *"}, "'0 0 L-5 * *' is not a schedule"),
        ({**OFFICE, "end": "0 0 1-L * *"}, "'0 0 1-L * *' is not a schedule"),
        ({**OFFICE, "end": "0 0 */31 * 2#5"}, "'0 0 */31 * 2#5' is a time that never comes"),
        ({**OFFICE, "timeZone": "Mars/Olympus"}, "'Mars/Olympus' is not in"),
        ({**OFFICE, "timeZone": "Europe"}, "'Europe' is not in"),
        ({**OFFICE, "timeZone": "/etc/passwd"}, "'/etc/passwd' is not in"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(demand.InvalidSchedule, match=r"^[^\n]*$") as caught:
        demand.check_schedule(autoscaling(entry), datetime(2026, 11, 23, tzinfo=UTC))
    assert message in str(caught.value)


@given(
    st.integers(1_704_067_200, 1_893_456_000).map(lambda second: datetime.fromtimestamp(second, UTC)),
    st.sampled_from(["UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata"]),
    st.integers(0, 23),
    st.integers(1, 22),
)
def test_daily_bounds_hold_by_the_local_clock(now: datetime, zone: str, start: int, hours: int) -> None:
    """Away from the hours in which a clock is put forward or back."""
    end = (start + hours) % 24
    entry = {"start": f"0 {start} * * *", "end": f"0 {end} * * *", "timeZone": zone, "minReplicas": 5}
    local = now.astimezone(ZoneInfo(zone))
    near = [(now + timedelta(hours=step)).astimezone(ZoneInfo(zone)).utcoffset() for step in range(-26, 4)]
    if len(set(near)) > 1:
        return
    is_in = (local.hour - start) % 24 < hours
    assert demand.bounds(autoscaling(entry), now).min_replicas == (5 if is_in else 1)


field = st.sampled_from(["*", "0", "1-5", "*/7", "29", "31", "L", "5#5", "99", "a", "1,2,3", "0-0", "5-1", "MON"])
strange = st.text("0123456789*/-,#LW?²", min_size=1, max_size=6)


@given(st.tuples(*[field | strange] * 5), st.sampled_from(["UTC", "Europe/Berlin"]))
def test_any_five_fields_are_bounds_or_refused(fields: tuple[str, ...], zone: str) -> None:
    entry = {"start": " ".join(fields), "end": "0 0 * * *", "timeZone": zone, "minReplicas": 5}
    found = autoscaling(entry)
    now = datetime(2026, 11, 23, 12, tzinfo=UTC)
    try:
        assert demand.bounds(found, now).min_replicas in (1, 5)
    except demand.InvalidSchedule:
        with pytest.raises(demand.InvalidSchedule):
            demand.check_schedule(found, now)
