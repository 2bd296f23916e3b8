"""Questions to the activators about one service, and their reports whether they can hold its requests."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from llmservice_api.holding import HoldingReport

ASK_SECONDS = 1.0
"""Seconds between two questions while the last replica is about to end."""
SPREAD_SECONDS = 4.0
"""Seconds for which slices must exist before reports count: an answer may be three seconds old, two of them at the
activator."""
AT_ZERO_SECONDS = 300.0
"""Seconds between two questions at zero replicas."""
CONFIRM_SECONDS = 60.0
"""The same after a report that requests cannot be held; longer than the detection of a lost node."""


@dataclass(frozen=True, slots=True)
class QuestionSubject:
    """The state about which the activators are asked."""

    uid: str
    generation: int
    port: int | None
    addresses: tuple[str, ...]
    """Of the activators that are asked."""
    slices: tuple[tuple[str, str], ...] = ()
    """uids and versions of the operator's EndpointSlices."""
    is_at_zero: bool = False
    """No replica runs, and requests are held."""
    is_written: bool = False
    """The status is about this generation."""


@dataclass(frozen=True, slots=True)
class Reports:
    """Reports of the activators about one service."""

    by_address: Mapping[str, HoldingReport]
    """The latest report of each; empty at zero until they are asked."""
    asked_for: float = 0.0
    """Seconds since the first question whether the last replica may end."""
    made_for: float = 0.0
    """Seconds for which the slices have been unchanged."""
    tried_for: float = 0.0
    """Seconds for which a replica has run with unchanged generation, port and activators."""
    unable_for: float = 0.0
    """Seconds between the first and the last of consecutive questions to which one reported that it cannot hold."""
    due_in: float = 0.0
    """Seconds until the next question at zero."""


@dataclass(frozen=True, slots=True)
class ActivatorQuestions:
    """State of the questions about one service; times of the monotonic clock.

    While the last replica or a rollout is about to leave none, activators are asked every ASK_SECONDS. At zero they are
    asked SPREAD_SECONDS after a change of generation, port, activators or slices, and otherwise every AT_ZERO_SECONDS,
    at an offset per service that spreads the load. One report may be of the moment in which an activator was lost; a
    service gets a replica only if its requests cannot be held CONFIRM_SECONDS later either.
    """

    about: QuestionSubject
    first_at: float
    slices_since: float
    tried_since: float
    due_at: float
    """Time of the next question at zero."""
    read_at: float = float("-inf")
    reports: Mapping[str, HoldingReport] = field(default_factory=dict)
    unable_since: float | None = None

    @classmethod
    def first(cls, about: QuestionSubject, now: float) -> Self:
        """The state without earlier questions. If the status is about this generation, holding was confirmed before."""
        return cls(about, now, now, now, next_question_at(about.uid, now) if about.is_written else now + SPREAD_SECONDS)

    def follow(self, about: QuestionSubject, now: float) -> Self:
        """The state after a change of `about`; unchanged parts keep their times."""
        before = self.about
        is_same = (about.generation, about.port, about.addresses) == (before.generation, before.port, before.addresses)
        is_as_made = about.slices == before.slices
        found = replace(
            self,
            about=about,
            slices_since=self.slices_since if is_as_made else now,
            tried_since=self.tried_since if is_same and not about.is_at_zero else now,
        )
        if is_same and is_as_made:
            return found
        # Other activators may come and go while one cannot hold.
        unable = {address for address, report in self.reports.items() if cannot_hold(report)}
        is_unable = about.generation == before.generation and about.port == before.port and unable & {*about.addresses}
        return replace(found, due_at=now + SPREAD_SECONDS, unable_since=self.unable_since if is_unable else None)

    def is_due(self, now: float) -> bool:
        if self.about.is_at_zero:
            return now >= self.due_at
        return now - self.read_at >= ASK_SECONDS or set(self.reports) != set(self.about.addresses)

    def answered(self, reports: Mapping[str, HoldingReport], now: float) -> Self:
        """The state after these reports at `now`."""
        is_able = not any(map(cannot_hold, reports.values()))
        unable_since = None if is_able else now if self.unable_since is None else self.unable_since
        due_at = next_question_at(self.about.uid, now) if is_able else now + CONFIRM_SECONDS
        return replace(self, reports=reports, read_at=now, unable_since=unable_since, due_at=due_at)

    def known(self, now: float) -> Reports:
        """The reports for a decision."""
        return Reports(
            self.reports,
            now - self.first_at,
            now - self.slices_since,
            now - self.tried_since,
            0.0 if self.unable_since is None else self.read_at - self.unable_since,
            max(0.0, self.due_at - now),
        )


def cannot_hold(report: HoldingReport) -> bool:
    """Whether an activator reports that it holds no requests. An unreachable one does not count: if the cluster's DNS
    failed, all services at zero would start."""
    return not report.unread and (not report.is_listening or bool(report.problem))


def next_question_at(uid: str, now: float) -> float:
    """Time of the next question for this service, by its offset."""
    return now + ((zlib.crc32(uid.encode()) - now) % AT_ZERO_SECONDS or AT_ZERO_SECONDS)
