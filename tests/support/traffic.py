"""`llmservice probe` beside the stories of a test: constant load, and what was lost in each of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from llmservice_cli.probe import Mode
from llmservice_cli.probe.report import (
    Mark,
    ProbedRequest,
    Stretch,
    clock,
    stretches,
)

from tests.support.cluster import JSON, Cluster, eventually
from tests.support.patience import PATIENCE
from tests.support.serving import requests_in_flight

# Enough for an answer that is under way, through an API server that was away, to be reported.
REPORTED_WITHIN = 60.0
# Between two requests of the lightest load a server may be idle.
BUSY_WITHIN = 60.0


@dataclass
class Traffic:
    """A probe that runs, in a pod on this machine: its clock is ours."""

    process: subprocess.Popen[str]
    rows: list[ProbedRequest] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)
    has_begun: threading.Event = field(default_factory=threading.Event)
    stories: dict[str, Stretch] = field(default_factory=dict)
    strikes: dict[str, float] = field(default_factory=dict)
    _story: str = ""

    @contextmanager
    def during(self, story: str) -> Iterator[None]:
        """Everything that is sent, or ends, from here until what the block left under way has ended too."""
        self._story, began = story, Mark(story, time.time())
        yield
        self.await_everything_before(time.time())
        self.stories[story] = stretches(self.rows, [began, Mark("the next", time.time())])[0]

    def strike(self, *pods: JSON) -> float:
        """Now is the moment of the story's blow, at which one of these pods is answering somebody."""
        eventually("a request in flight", lambda: any(map(requests_in_flight, pods)), BUSY_WITHIN)
        self.strikes[self._story] = time.time()
        return self.strikes[self._story]

    def await_everything_before(self, moment: float) -> None:
        """Until the probe has reported every request that was sent until then; losses are reported late."""

        def missing() -> int | None:
            seen = {row.index for row in self.rows}
            later = [row.index for row in self.rows if row.sent > moment]
            return None if not later else sum(1 for index in range(min(later)) if index not in seen)

        eventually("news of all requests", lambda: missing() == 0, REPORTED_WITHIN)

    def of(self, story: str) -> str:
        """What was lost in it, for an assertion's message."""
        stretch = self.stories[story]
        lost = [row for row in self.rows if not row.is_complete and stretch.mark.at <= row.ended <= stretch.until]
        return "\n".join([f"{story} from {clock(stretch.mark.at)}:", *map(in_words, lost)])

    def lost(self, story: str) -> int:
        """All of the story, those under way at its beginning too."""
        return self.stories[story].lost_in_flight + self.stories[story].lost_later

    def in_flight(self, moment: float) -> int:
        """Requests that were sent before and ended after it."""
        return sum(1 for row in self.rows if row.sent < moment < row.ended)

    def modes(self, story: str) -> set[Mode]:
        """Ways in which the requests of a story were sent."""
        reported = self.stories[story]
        return {row.mode for row in self.rows if reported.mark.at <= row.sent < reported.until}

    def figures(self, story: str) -> JSON:
        """A row of the table, from the blow on."""
        return in_figures(self.since(story, self.strikes[story]))

    def assert_nothing_lost(self, story: str) -> None:
        """Of a story that could have lost something: the blow met requests, and they were of all kinds."""
        assert self.in_flight(self.strikes[story]) >= 1, f"{story} met nobody"
        assert self.modes(story) == set(Mode), story
        assert self.lost(story) == 0, self.of(story)

    def unaccounted(self) -> list[str]:
        """Losses of no story."""
        spans = [(each.mark.at, each.until) for each in self.stories.values()]
        lost = [row for row in self.rows if not row.is_complete]
        return [in_words(row) for row in lost if not any(began <= row.ended <= until for began, until in spans)]

    def since(self, story: str, moment: float) -> Stretch:
        """The story from a moment in it on, at which the blow fell."""
        return stretches(self.rows, [Mark(story, moment), Mark("the next", self.stories[story].until)])[0]

    def _read_rows(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            document: dict[str, Any] = json.loads(line)
            if "index" in document:
                self.rows.append(ProbedRequest.from_document(document))
            elif "begin" in document:
                self.has_begun.set()

    def _read_messages(self) -> None:
        assert self.process.stderr is not None
        self.reported.extend(line.rstrip() for line in self.process.stderr)


def in_figures(stretch: Stretch) -> JSON:
    """A row of the table: what was sent, and what was lost."""
    return {
        "seconds": round(stretch.until - stretch.mark.at, 1),
        "sent": stretch.sent,
        "inFlight": stretch.in_flight,
        "lostInFlight": stretch.lost_in_flight,
        "lostLater": stretch.lost_later,
        "lostByKind": dict(stretch.ended.by_kind),
        "longestGap": round(stretch.ended.longest_gap, 2),
    }


def in_words(row: ProbedRequest) -> str:
    """One loss."""
    how = f"{row.loss} {row.mode} reused={row.reused} {row.got} bytes: {row.error}"
    return f"{clock(row.sent)} to {clock(row.ended)}: {how}"


@contextmanager
def traffic(cluster: Cluster, namespace: str, name: str, *words: str) -> Iterator[Traffic]:
    """`llmservice probe NAME` with these options, from its first request on, until the block ends."""
    command = (sys.executable, "-m", "llmservice_cli", "probe", name, "-n", namespace, "--rows", *words)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=cluster.environment
    )
    running = Traffic(process)
    readers = [threading.Thread(target=read) for read in (running._read_rows, running._read_messages)]
    for reader in readers:
        reader.start()
    try:
        assert running.has_begun.wait(PATIENCE), f"no request was sent: {running.reported}"
        yield running
        assert process.poll() is None, f"the probe ended early: {running.reported}"
    finally:
        process.send_signal(signal.SIGINT)  # it awaits what is under way, and deletes its pod
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for reader in readers:
            reader.join()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
