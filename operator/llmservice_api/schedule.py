"""Checks of spec.scaling.autoscaling.schedule beyond the schema: cron expressions and time zones."""

from __future__ import annotations

import calendar
import functools
from collections.abc import Iterator
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from llmservice_api.autoscaling import Autoscaling
from llmservice_api.errors import InvalidSpec, Problem

_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)
_CRON_REMEDY = (
    "Write five fields: minute, hour, day of the month, month, day of the week, as in 0 8 * * 1-5 for 8:00 from Monday "
    "to Friday."
)
_NEVER_REMEDY = (
    "Where the day of the month or the day of the week begins with *, a day must match both; otherwise one of them is "
    "enough."
)
_ZONE_REMEDY = "Write a name of the IANA time zone database, as in Europe/Berlin or UTC."


def check_schedule(autoscaling: Autoscaling | None) -> None:
    """InvalidSpec with every invalid cron expression and time zone."""
    if autoscaling is not None and (problems := list(_problems(autoscaling))):
        raise InvalidSpec(problems)


def _problems(autoscaling: Autoscaling) -> Iterator[Problem]:
    for index, entry in enumerate(autoscaling.schedule):
        at = f"spec.scaling.autoscaling.schedule[{index}]"
        for name, expression in (("start", entry.start), ("end", entry.end)):
            if not is_cron(expression):
                yield Problem(f"{at}.{name}", f"{expression} is not a time in cron's notation.", _CRON_REMEDY)
            elif not ever_comes(expression):
                yield Problem(f"{at}.{name}", f"{expression} is a time that never comes.", _NEVER_REMEDY)
        if not is_time_zone(entry.time_zone):
            yield Problem(f"{at}.timeZone", f"{entry.time_zone} is not the name of a time zone.", _ZONE_REMEDY)


def is_cron(expression: str) -> bool:
    try:
        CronSim(expression, _ANY_TIME)
    except (CronSimError, ValueError, TypeError, AssertionError):
        # The last three occur where it mixes notations for the last day of a month with ranges.
        return False
    return True


@functools.lru_cache(maxsize=4096)
def ever_comes(expression: str) -> bool:
    """Whether any day matches a cron expression.

    A match depends on the day's number, its weekday and the month's length, so that one month of each length and first
    weekday is sufficient; `CronSim` itself searches fifty years.
    """
    cron = CronSim(expression, _ANY_TIME)
    lengths = {length for month in cron.months for length in _LENGTHS[month]}
    months = (month for length in sorted(lengths, reverse=True) for month in _MONTHS[length])
    return any(cron.match_day(date(year, month, day)) for year, month, last in months for day in range(1, last + 1))


_LENGTHS = {month: {calendar.monthrange(year, month)[1] for year in (2001, 2004)} for month in range(1, 13)}


def _months() -> dict[int, list[tuple[int, int, int]]]:
    """By length: a month (year, month, last day) for each first weekday."""
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    for year in range(2000, 2028):
        for month in range(1, 13):
            weekday, last = calendar.monthrange(year, month)
            found.setdefault((last, weekday), (year, month, last))
    return {length: [each for (last, _), each in found.items() if last == length] for length in range(28, 32)}


_MONTHS = _months()


def is_time_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True
