"""What the activators are asked about one service, and what they report: whether they can hold its requests."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from llmservice_api.holding import HoldingReport

ASK_SECONDS = 1.0
"""Between two questions to the activators while the last replica is to go."""
SPREAD_SECONDS = 4.0
"""For which slices must have been there before reports count: an answer may be three seconds old, two of them at the
activator."""
REST_SECONDS = 300.0
"""Between two questions at rest."""
AGAIN_SECONDS = 60.0
"""The same after a report that requests cannot be held; longer than a lost node takes to be known as lost."""


@dataclass(frozen=True, slots=True)
class About:
    """What is asked about, at one time."""

    uid: str
    generation: int
    port: int | None
    addresses: tuple[str, ...]
    """Of the activators that are asked."""
    slices: tuple[tuple[str, str], ...] = ()
    """The uids and versions of the EndpointSlices of ours."""
    is_at_rest: bool = False
    """No replica runs, and requests are held."""
    is_written: bool = False
    """The status is of this generation."""


@dataclass(frozen=True, slots=True)
class Reports:
    """What the activators say of one service."""

    by_address: Mapping[str, HoldingReport]
    """Of each one its latest report; at rest empty until they are asked."""
    asked_for: float = 0.0
    """Seconds since they were first asked whether the last replica may go."""
    made_for: float = 0.0
    """Seconds for which the slices have been as they are."""
    tried_for: float = 0.0
    """Seconds for which a replica has run and generation, port and activators have been as they are."""
    unable_for: float = 0.0
    """Seconds between the first and the last question in a row to which one reported that it cannot hold."""
    due_in: float = 0.0
    """Seconds until they are asked again at rest."""


@dataclass(frozen=True, slots=True)
class Questions:
    """What the activators were asked about one service, and when they are asked again; times of the monotonic clock.

    While the last replica is to go, or a rollout is to end it, they are asked each ASK_SECONDS. At rest, which is at
    zero, they are asked SPREAD_SECONDS after a change of the generation, the port, the activators or the slices, and
    otherwise each REST_SECONDS, at a time of the service's own: resting services share the load evenly. One report may
    be of a moment in which an activator was lost, so a service gets a replica once AGAIN_SECONDS later its requests
    cannot be held either.
    """

    about: About
    first_at: float
    slices_since: float
    tried_since: float
    due_at: float
    """When they are asked again, at rest."""
    read_at: float = float("-inf")
    reports: Mapping[str, HoldingReport] = field(default_factory=dict)
    unable_since: float | None = None

    @classmethod
    def first(cls, about: About, now: float) -> Self:
        """Whatever was asked before is not known. What the status was written for was proven by then."""
        return cls(about, now, now, now, turn(about.uid, now) if about.is_written else now + SPREAD_SECONDS)

    def follow(self, about: About, now: float) -> Self:
        """With what is as it was, and what changed since."""
        before = self.about
        is_same = (about.generation, about.port, about.addresses) == (before.generation, before.port, before.addresses)
        is_as_made = about.slices == before.slices
        found = replace(
            self,
            about=about,
            slices_since=self.slices_since if is_as_made else now,
            tried_since=self.tried_since if is_same and not about.is_at_rest else now,
        )
        if is_same and is_as_made:
            return found
        # Others may come and go while one of them cannot hold.
        unable = {address for address, report in self.reports.items() if cannot_hold(report)}
        is_unable = about.generation == before.generation and about.port == before.port and unable & {*about.addresses}
        return replace(found, due_at=now + SPREAD_SECONDS, unable_since=self.unable_since if is_unable else None)

    def is_due(self, now: float) -> bool:
        """Whether they are to be asked now."""
        if self.about.is_at_rest:
            return now >= self.due_at
        return now - self.read_at >= ASK_SECONDS or set(self.reports) != set(self.about.addresses)

    def answered(self, reports: Mapping[str, HoldingReport], now: float) -> Self:
        """They were asked now, and reported this."""
        is_able = not any(map(cannot_hold, reports.values()))
        unable_since = None if is_able else now if self.unable_since is None else self.unable_since
        due_at = turn(self.about.uid, now) if is_able else now + AGAIN_SECONDS
        return replace(self, reports=reports, read_at=now, unable_since=unable_since, due_at=due_at)

    def known(self, now: float) -> Reports:
        """What a decision is made by."""
        return Reports(
            self.reports,
            now - self.first_at,
            now - self.slices_since,
            now - self.tried_since,
            0.0 if self.unable_since is None else self.read_at - self.unable_since,
            max(0.0, self.due_at - now),
        )


def cannot_hold(report: HoldingReport) -> bool:
    """Whether this activator reports that it holds no request. That it is not reached is none: the cluster's DNS may be
    down, and all services at zero would start."""
    return not report.unread and (not report.is_listening or bool(report.problem))


def turn(uid: str, now: float) -> float:
    """When it is this service's turn next."""
    return now + ((zlib.crc32(uid.encode()) - now) % REST_SECONDS or REST_SECONDS)
