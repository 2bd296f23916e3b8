"""Checks of spec.scaling.autoscaling.schedule that the schema cannot make: its cron expressions and time zones."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from llmservice_operator.api.autoscaling import Autoscaling
from llmservice_operator.api.errors import InvalidSpec, Problem

_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)
_CRON_REMEDY = (
    "Write five fields: minute, hour, day of the month, month, day of the week, as in 0 8 * * 1-5 for 8:00 from Monday "
    "to Friday."
)
_ZONE_REMEDY = "Write a name of the IANA time zone database, as in Europe/Berlin or UTC."


def check_schedule(autoscaling: Autoscaling | None) -> None:
    """InvalidSpec with every expression that is no cron expression, and every name that is no time zone's."""
    if autoscaling is not None and (problems := list(_problems(autoscaling))):
        raise InvalidSpec(problems)


def _problems(autoscaling: Autoscaling) -> Iterator[Problem]:
    for index, entry in enumerate(autoscaling.schedule):
        at = f"spec.scaling.autoscaling.schedule[{index}]"
        for name, expression in (("start", entry.start), ("end", entry.end)):
            if not is_cron(expression):
                yield Problem(f"{at}.{name}", f"{expression} is not a time in cron's notation.", _CRON_REMEDY)
        if not is_time_zone(entry.time_zone):
            yield Problem(f"{at}.timeZone", f"{entry.time_zone} is not the name of a time zone.", _ZONE_REMEDY)


def is_cron(expression: str) -> bool:
    """Whether it is a cron expression that is due at some time."""
    try:
        CronSim(expression, _ANY_TIME)
    except (CronSimError, ValueError, TypeError, AssertionError):
        # The last three where it mixes notations for the last day of a month with ranges.
        return False
    return True


def is_time_zone(name: str) -> bool:
    """Whether the time zone database has it."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True
