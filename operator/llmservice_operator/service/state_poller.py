"""Reads /state of starting pods: a few at a time, each every few seconds, and only those that a decision lists.

Each report that reaches decisions may cause a status write. So it does at once when a phase or an adapter changed, and
otherwise every 15 seconds per service. Frequent changes of a service's pods are also combined to one report every 15
seconds. A service whose pods have nothing to report is not polled.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kubeloop.log import object_logger
from kubeloop.queue import Bucket, WorkQueue, step_bucket
from kubeloop.resources import Key
from llmservice_runtime.contract import State

from llmservice_operator.observe.observed import Ask, Report
from llmservice_operator.readers.pod_port import Unreadable
from llmservice_operator.service.containment import InternalErrors, InWork, Part
from llmservice_operator.service.metrics import Metrics

logger = logging.getLogger(__name__)

CONCURRENCY = 16
INTERVAL = 3.0
LONGEST_INTERVAL = 60.0
LONGEST_SILENCE = 600.0
"""Seconds between two attempts for a ready pod that never answers: network policies are rarely lifted, and with
thousands of such pods each attempt waits for its timeout."""
REPORT_SECONDS = 15.0
"""Seconds between two reports of a service without a new phase."""
PATIENCE = 3
"""Failed attempts after which a pod counts as not answering."""

Read = Callable[[str], Awaitable[State]]


class _Pod(NamedTuple):
    key: Key
    name: str


@dataclass(slots=True)
class _PolledPod:
    ask: Ask
    silent: int = 0
    unchanged: int = 0


@dataclass(slots=True)
class _Service:
    asked: dict[str, _PolledPod] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    unpublished: dict[str, Report] = field(default_factory=dict)
    """Reports that decisions do not have yet: the service's pods changed too often."""
    steps: Bucket = field(default_factory=step_bucket)
    stepped_at: float = float("-inf")


class StatePoller:
    def __init__(
        self,
        read: Read,
        changed: Callable[[Key], None],
        metrics: Metrics,
        *,
        errors: InternalErrors | None = None,
        in_work: InWork | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._read, self._changed, self._metrics = read, changed, metrics
        self._errors, self._in_work = errors or InternalErrors(), in_work or InWork()
        self._clock, self._rng = clock, rng
        self._queue: WorkQueue[_Pod] = WorkQueue(clock=clock, rng=rng)
        self._services: dict[Key, _Service] = {}

    def reports(self, key: Key) -> Mapping[str, Report]:
        service = self._services.get(key)
        return dict(service.reports) if service is not None else {}

    def poll(self, key: Key, asks: Sequence[Ask], pods: Collection[str]) -> None:
        """Poll these pods from now on, and no others; `pods` are all pods of the service."""
        service = self._services.get(key)
        if service is None:
            if not asks:
                return
            service = self._services[key] = _Service()
        before, service.asked = service.asked, {}
        for ask in asks:
            known = before.get(ask.pod)
            if known is not None and known.ask == ask:
                service.asked[ask.pod] = known
            else:
                asked = service.asked[ask.pod] = _PolledPod(ask)
                # Ready pods can wait; starting ones have priority.
                self._queue.add_after(_Pod(key, ask.pod), 0.0 if ask.is_starting else self._interval(asked))
        service.reports = {name: report for name, report in service.reports.items() if name in pods}
        service.unpublished = {name: report for name, report in service.unpublished.items() if name in pods}
        for name in before.keys() - service.asked.keys():
            self._metrics.forget_pod(key, name)
            self._errors.ended(Part.STATE, key, f"of pod {name}")
        last = {name: service.unpublished.pop(name) for name in service.unpublished.keys() - service.asked.keys()}
        if last:  # no further reports of these will pass them on
            service.reports |= last
            self._changed(key)
        if not service.asked and not service.reports:
            del self._services[key]

    def forget(self, key: Key) -> None:
        self._services.pop(key, None)
        self._metrics.forget_progress(key)

    async def run(self) -> None:
        """Poll; never returns."""
        async with asyncio.TaskGroup() as group:
            for number in range(CONCURRENCY):
                group.create_task(self._work(), name=f"asking {number}")

    async def _work(self) -> None:
        while True:
            pod = await self._queue.get()
            try:
                if self._in_work.may_begin("state", pod.key):
                    async with self._in_work.during("state", pod.key):
                        await self._ask(pod)
                else:
                    self._queue.add_after(pod, INTERVAL)
            finally:
                self._queue.done(pod)

    async def _ask(self, pod: _Pod) -> None:
        """Poll one pod. An exception counts as no answer: it ends neither this task nor the others."""
        asked = self._asked(pod)
        if asked is None:
            return
        with self._errors.contained(Part.STATE, pod.key, f"of pod {pod.name}") as contained:
            report = await self._read_report(pod, asked)
            service = self._services.get(pod.key)
            if service is None or self._asked(pod) is not asked:
                return  # no longer polled
            if report is not None:
                self._record(pod, service, asked, report)
            elif service.unpublished and self._is_due(service):
                self._publish(pod.key, service)
        if contained.failed:
            self._metrics.state_reads.labels("failed").inc()
            asked.silent += 1
        if self._asked(pod) is asked:
            self._queue.add_after(pod, self._interval(asked))

    async def _read_report(self, pod: _Pod, asked: _PolledPod) -> Report | None:
        """The pod's report; None if it did not answer, fewer than PATIENCE times in a row."""
        ask = asked.ask
        try:
            state = await self._read(ask.address)
        except Unreadable as silent:
            self._metrics.state_reads.labels("invalid" if silent.is_invalid else "silent").inc()
            asked.silent += 1
            if asked.silent == PATIENCE:
                object_logger(logger, pod.key).info("pod %s does not report its state: %s", pod.name, silent)
            return Report(ask.uid, ask.restarts, None) if asked.silent >= PATIENCE else None
        self._metrics.state_reads.labels("answered").inc()
        asked.silent = 0
        return Report(ask.uid, ask.restarts, replace(state, phase_seconds=0.0))

    def _record(self, pod: _Pod, service: _Service, asked: _PolledPod, report: Report) -> None:
        known = service.reports.get(pod.name)
        asked.unchanged = asked.unchanged + 1 if report == service.unpublished.get(pod.name, known) else 0
        self._metrics.set_progress(pod.key, pod.name, report.state)
        service.unpublished.pop(pod.name, None)
        is_due, is_step = self._is_due(service), reported_step(known) != reported_step(report)
        if is_step or (is_due and report != known):
            service.unpublished[pod.name] = report
        if not service.unpublished:
            return
        # A report that is due also takes a token, if there is one.
        if (is_step and service.steps.take(self._clock())) or is_due:
            self._publish(pod.key, service)
        elif is_step:
            self._metrics.rate_limited.labels("report").inc()

    def _is_due(self, service: _Service) -> bool:
        return self._clock() - service.stepped_at >= REPORT_SECONDS

    def _publish(self, key: Key, service: _Service) -> None:
        service.reports |= service.unpublished
        service.unpublished.clear()
        service.stepped_at = self._clock()
        self._changed(key)

    def _asked(self, pod: _Pod) -> _PolledPod | None:
        service = self._services.get(pod.key)
        return service.asked.get(pod.name) if service is not None else None

    def _interval(self, asked: _PolledPod) -> float:
        """Starting pods are polled often; pods that do not answer, or whose adapters do not change, less."""
        if asked.silent and not asked.ask.is_starting:
            idle, longest, growth = asked.silent, LONGEST_SILENCE, 4.0
        else:
            idle = asked.silent if asked.ask.is_starting else asked.unchanged
            longest, growth = LONGEST_INTERVAL, 2.0
        return min(longest, INTERVAL * growth ** min(idle, 10)) * (0.75 + self._rng() / 2)


def reported_step(report: Report | None) -> object:
    """The part of a report whose change reaches decisions at once; progress within a phase does not."""
    if report is None or report.state is None:
        return report
    state = report.state
    transfer = state.transfer and (state.transfer.artifact, state.transfer.step)
    group = state.group and (
        state.group.cause,
        state.group.is_exhausted,
        {member.rank: member.step for member in state.group.members},
    )
    return (
        (report.uid, report.restarts, state.phase, state.started, state.ready, state.unprobed, transfer),
        (state.adapters, state.adapters_hash),
        group,
    )
