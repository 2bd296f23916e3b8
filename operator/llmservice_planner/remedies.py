"""Changes with which a service would fit: the three cheapest, each planned again.

In order of cost: what affects nothing that was requested, then throughput, then a little accuracy, then more GPUs, then
larger ones. Pairs of changes where too few are enough alone. Each has its new verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from llmservice_planner import changes, memory, splits
from llmservice_planner.changes import Alternatives, Change, ChangeKind, Fields
from llmservice_planner.cluster import is_part
from llmservice_planner.gpus import most_per_node
from llmservice_planner.plan import Device, Fit, Plan, Remedy, Request
from llmservice_planner.served import unreadable_checkpoint

MOST = 3
"""Proposals."""
CLEARLY_SMALLER = 0.8


PlanFor = Callable[[Request], Plan]
Accepts = Callable[[Fields], bool]


def with_remedies(
    request: Request,
    plan: Plan,
    others: Sequence[Device] = (),
    *,
    plan_for: PlanFor = memory.plan,
    accepts: Accepts = lambda _: True,
    most_gpus: int = 8,
) -> Plan:
    """The plan of `request` with remedies; unchanged where it fits already or nothing is known.

    `others` are alternative GPUs, `most_gpus` the limit of one replica, `accepts` whether a spec with these fields is
    valid. Where no change or pair is enough, the reason says what would be.
    """
    if plan.verdict not in (Fit.DOES_NOT_FIT, Fit.TIGHT) or request.device is None or request.architecture is None:
        return plan
    if unreadable_checkpoint(request) is not None:
        return plan
    search = _Search(request, plan, Alternatives(others, most_gpus), plan_for, accepts)
    found = list(islice(chain(search.singles(), search.pairs()), MOST))
    if not found and plan.verdict is Fit.DOES_NOT_FIT:
        found = search.tight[:MOST]
    if found:
        return replace(plan, remedies=tuple(found))
    return replace(plan, reason=f"{plan.reason} {search.least_gpus()}")


def counts(device: Device) -> Iterator[int]:
    """Numbers of GPUs for one replica, the fewest first; for parts of a GPU only one."""
    most = 1 if is_part(device.name, ()) else most_per_node(device.name)
    return (count for count in (1, 2, 4, 8, 16) if count <= most)


def is_enough(request: Request, plan: Plan, count: int, device: Device, plan_for: PlanFor = memory.plan) -> bool:
    """Whether the request surely fits on so many of a product. `plan` is the request's own."""
    split = over(request, count, device)
    if split is None or not changes.weights_may_fit(request, plan, split) or not changes.is_compatible(request, split):
        return False
    return plan_for(split).verdict is Fit.FITS


def over(request: Request, count: int, device: Device) -> Request | None:
    """The request on so many of a product: as ranks, or ranks that share the heads and stages; None: impossible."""
    for ranks in (count, 8, 4, 2, 1):
        split = replace(
            request,
            device=device,
            tensor_parallel_size=ranks,
            pipeline_parallel_size=count // ranks,
            data_parallel_size=1,
        )
        if count % ranks == 0 and splits.possible(split):
            return split
    return None


@dataclass(slots=True)
class _Tried:
    change: Change
    plan: Plan

    @property
    def remedy(self) -> Remedy:
        """As a remedy of the answer."""
        return Remedy.of(self.change.words, self.change.fields, self.plan, self.change.gpu)


class _Search:
    """The changes of one request, in order of cost."""

    def __init__(
        self, request: Request, plan: Plan, alternatives: Alternatives, plan_for: PlanFor, accepts: Accepts
    ) -> None:
        self.request, self.plan, self.alternatives = request, plan, alternatives
        self.plan_for, self.accepts = plan_for, accepts
        self.tight: list[Remedy] = []
        """Those with verdict Tight."""
        self.insufficient: list[tuple[ChangeKind, _Tried]] = []
        self.proposed: dict[ChangeKind, Change] = {}

    def singles(self) -> Iterator[Remedy]:
        """One of each kind that is enough alone. Stages are tried where ranks are not enough."""
        for kind in self._by_cost():
            if kind is changes.more_stages and changes.more_ranks in self.proposed:
                continue
            tried = self._first(kind, self.request, self.plan)
            if tried is not None:
                self.proposed[kind] = tried.change
                yield tried.remedy
            if kind is changes.more_ranks:
                yield from self._fewer_ranks()

    def _fewer_ranks(self) -> Iterator[Remedy]:
        """8-bit weights over fewer GPUs than without, where they are not enough alone."""
        if changes.fp8_weights in self.proposed:
            return
        alone = self.proposed.get(changes.more_ranks)
        tried = self._first(changes.fp8_over_ranks, self.request, self.plan)
        if tried is not None and (alone is None or tried.change.request.gpus < alone.request.gpus):
            yield tried.remedy

    def pairs(self) -> Iterator[Remedy]:
        """For each kind of change that helps but is not enough, the cheapest further change with which it is.

        A further change that is enough alone is excluded: the first would be useless. So is another checkpoint, which
        no patch sets, except over more GPUs if nothing else works on the same product: the text then names both.
        """
        if not self.proposed.keys() - {changes.another_gpu}:
            tried = self._first(changes.int4_over_ranks, self.request, self.plan)
            if tried is not None:
                yield tried.remedy
        kinds = [kind for kind in self._by_cost() if kind is not changes.int4_checkpoint]
        done: set[ChangeKind] = {changes.int4_checkpoint, changes.int4_over_ranks, changes.fp8_over_ranks}
        for kind, first in self.insufficient:
            if kind in done or not self._is_cheaper(kind, first.change):
                continue
            for second in kinds[: kinds.index(kind)]:
                if second in self.proposed and second is not changes.shorter_length:
                    continue
                found = self._first(second, first.change.request, first.plan, first.change)
                if found is not None and self._is_longer(second, found):
                    done.add(kind)
                    yield found.remedy
                    break

    def _is_longer(self, second: ChangeKind, pair: _Tried) -> bool:
        """Whether a shorter length with another change is longer than the one that is enough alone."""
        alone = self.proposed.get(second)
        if alone is None:
            return True
        one, other = pair.change.request.max_model_len, alone.request.max_model_len
        return isinstance(one, int) and isinstance(other, int) and one > other

    def _is_cheaper(self, kind: ChangeKind, change: Change) -> bool:
        """Whether a second change with another product uses a clearly smaller one than is enough alone."""
        alone = self.proposed.get(kind)
        if kind is not changes.another_gpu or alone is None:
            return True
        one, other = change.request.device, alone.request.device
        return one is not None and other is not None and one.memory_gib < CLEARLY_SMALLER * other.memory_gib

    def least_gpus(self) -> str:
        """The smallest total memory of known GPUs on which it would run as requested."""
        device = self.request.device
        assert device is not None
        alike = {other.name: other for other in (device, *self.alternatives.others) if other.is_amd == device.is_amd}
        choices = [(count * other.memory_gib, count, other) for other in alike.values() for count in counts(other)]
        for _, count, other in sorted(choices, key=lambda choice: choice[:2]):
            if is_enough(self.request, self.plan, count, other, self.plan_for):
                return f"No change that was tried is enough: it needs {count} x {other.name}."
        most = max(map(most_per_node, alike))
        return f"Nothing that was tried is enough, up to {most} GPUs of each kind on one node."

    def _by_cost(self) -> tuple[ChangeKind, ...]:
        """A shorter length costs nothing unless a length was requested."""
        is_requested = isinstance(self.request.max_model_len, int)
        free = () if is_requested else (changes.shorter_length,)
        costly = (changes.shorter_length,) if is_requested else ()
        settings = (changes.smaller_batches, changes.higher_utilization, changes.fp8_cache, changes.without_graphs)
        weights = (changes.fp8_weights, changes.int4_checkpoint)
        return (
            changes.accepted_settings,
            changes.whole_experts,
            changes.another_split,
            changes.lower_utilization,
            *free,
            *settings,
            *costly,
            *weights,
            changes.more_ranks,
            changes.more_stages,
            changes.another_gpu,
        )

    def _first(self, kind: ChangeKind, request: Request, plan: Plan, before: Change | None = None) -> _Tried | None:
        """The first variant that surely fits."""
        for change in kind(request, plan, self.alternatives):
            whole = change if before is None else before.then(change)
            if not self.accepts(whole.fields):
                continue
            tried = _Tried(whole, self.plan_for(whole.request))
            if tried.plan.verdict is Fit.FITS:
                return tried
            if tried.plan.verdict is Fit.TIGHT:
                self.tight.append(tried.remedy)
            if before is None:
                self.insufficient.append((kind, tried))
        return None
