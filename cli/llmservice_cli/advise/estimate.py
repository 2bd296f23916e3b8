"""What a service's replicas would hit in their prefix caches if requests went where their prefix is. Pure.

From the counters of vLLM alone: bounds. From KV events as well: what was asked for is reconstructed, and played once
more against caches of the same size with requests routed by prefix.

A request is known by the blocks that it stored, which name the block before them, and so all that it found in the cache
and shares with others. One whose blocks were all there stored nothing, and is not seen: it gains nothing either.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

Block = int | bytes
"""As vLLM names it: a hash of its tokens and of all before them."""

CHUNK_SECONDS = 2.0
"""Between two steps in which vLLM stores blocks of one prompt, at most."""
DECAY_SECONDS = 10.0
"""Over which a replica's load is remembered when a request is routed."""
SLICES = 20
"""Parts of the time that is played, which differ as other such times would."""
Z = 2.1
"""Of Student's t for 20 slices: 95 %."""
MOST_STEPS = 5_000_000
"""Blocks of all requests together: they are looked at one by one, in seconds."""
MOST_CHAIN = 300_000
"""Blocks of one request."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks of one request that became cached, in order. `parent`: the one before them; None: they are its first."""

    at: float
    """Seconds, by the pod's clock."""
    parent: Block | None
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """The whole cache was given up."""

    at: float


Event = Stored | Cleared


@dataclass(frozen=True, slots=True)
class Counters:
    """Of one replica between two reads, in tokens of prompts."""

    queries: float
    hits: float
    """Of the queries: not more than these."""
    requests: float = 0.0
    is_full: bool = False
    """Its cache has given up blocks, or may have."""


@dataclass(frozen=True, slots=True)
class Replica:
    """What is known of one."""

    counters: Counters
    block_size: int
    """Tokens."""
    capacity: int
    """Blocks."""
    events: tuple[Event, ...] = ()
    before: int = 0
    """How many of the events came before the counters were read first: they fill the caches."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Shares of all prompt tokens, 0 to 1."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of the same traffic."""

    now: float
    """Share of prompt tokens that were hit."""
    gain: Interval
    """What routing by prefix adds to it."""
    requests: int = 0
    """That were reconstructed; 0: from counters alone."""


def _hit_rate(replicas: Sequence[Counters]) -> float:
    queries = sum(each.queries for each in replicas)
    return sum(each.hits for each in replicas) / queries if queries else 0.0


def from_counters(replicas: Sequence[Counters], number: int, *, is_routed: bool = False) -> Estimate:
    """Bounds for a service with this number of replicas, those included that are not known. Where requests are spread
    by chance, an earlier request with the prefix of a hit of now came to the same replica, as one of R does; so R times
    as many at most would be hits, while caches keep everything. Those of a routed fleet give up less, since they do not
    all hold the same: where one is full, or chance does not choose (`is_routed`), there is no bound but one."""
    now = _hit_rate(replicas)
    requests = max(1.0, sum(each.requests for each in replicas))
    # What chance may have hidden: two standard errors, and where nothing was seen three of so many requests (the
    # "rule of three").
    seen = now + 2 * sqrt(now * (1 - now) / requests) + 3 / requests
    is_unbound = is_routed or any(each.is_full for each in replicas)
    most = 1 - now if is_unbound else min(seen * (number - 1), 1 - now)
    return Estimate(now, Interval(0.0, max(0.0, most)))


class NotPlayed(ValueError):
    """Requests that cannot be played: why, and what to do."""


def _too_much(*, is_counted: bool) -> NotPlayed:
    """`is_counted`: those of the watch are, of which a shorter one has fewer; those before it stay as many."""
    if is_counted:
        return NotPlayed("the requests are more, or longer, than can be looked at: ask for a shorter time (--for)")
    return NotPlayed("the requests before the watch are more, or longer, than can be looked at: measure with a router")


@dataclass(slots=True)
class Request:
    """As far as it can be reconstructed."""

    at: float
    replica: int
    parent: Block | None
    """The last block that was there already; None: none was."""
    stored: list[Block]
    prompt: int
    """How many of the stored ones are of the prompt; the others are of the answer."""
    is_counted: bool


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was asked for, by time."""

    requests: Sequence[Request | tuple[float, int]]
    """And when which replica's cache was cleared."""
    parents: Mapping[Block, Block | None]
    """Of blocks that any replica stored at any time: where one stored a chain before, another may show its beginning
    later."""

    def found(self, request: Request) -> list[Block]:
        """What the replica had of the request, from the first known block. NotPlayed for one that is too long, or
        none."""
        chain: list[Block] = []
        seen: set[Block] = set()
        block = request.parent
        while block is not None:
            if block in seen:
                raise NotPlayed("the events are of no use, since a block comes before itself: measure with a router")
            if len(chain) >= MOST_CHAIN:
                raise _too_much(is_counted=request.is_counted)
            seen.add(block)
            chain.append(block)
            block = self.parents.get(block)
        return chain[::-1]


def traffic_of(replicas: Sequence[Replica]) -> Traffic:
    """What answers add to a chain belongs to its request, and so does the next part of a long prompt."""
    merged = sorted(
        (
            (event.at, index, number, event)
            for index, replica in enumerate(replicas)
            for number, event in enumerate(replica.events)
        ),
        key=lambda each: each[:3],
    )
    parents: dict[Block, Block | None] = {}
    tails: dict[tuple[int, Block], tuple[Request, int, float]] = {}
    """By a request's last block: the request, how many blocks it stored with it, and when."""
    found: list[Request | tuple[float, int]] = []
    for at, index, number, event in merged:
        if isinstance(event, Cleared):
            found.append((at, index))
            continue
        for before, block in zip((event.parent, *event.blocks), event.blocks, strict=False):
            parents.setdefault(block, before)
        known = None if event.parent is None else tails.pop((index, event.parent), None)
        is_answer = len(event.blocks) == 1
        if known is not None and (is_answer or (known[1] > 1 and at - known[2] <= CHUNK_SECONDS)):
            request = known[0]
            request.prompt += 0 if is_answer else len(event.blocks)
            request.stored.extend(event.blocks)
        else:
            is_counted = number >= replicas[index].before
            request = Request(at, index, event.parent, list(event.blocks), len(event.blocks), is_counted)
            found.append(request)
        tails[index, event.blocks[-1]] = (request, len(event.blocks), at)
    return Traffic(found, parents)


class Caches:
    """Those of all replicas: least recently used blocks go first, the ends of chains before their beginnings."""

    def __init__(self, capacities: Sequence[int]) -> None:
        self._capacities = capacities
        self._held: list[OrderedDict[Block, None]] = [OrderedDict() for _ in capacities]
        self._where: dict[Block, int] = {}
        """Bits of the replicas that hold it."""

    def matches(self, chain: Sequence[Block]) -> list[int]:
        """How many blocks of the chain, from its first, each replica holds."""
        found = [0] * len(self._held)
        there = (1 << len(self._held)) - 1
        for number, block in enumerate(chain):
            left = there & self._where.get(block, 0)
            if left != there:
                for index in _bits(there & ~left):
                    found[index] = number
                there = left
            if not there:
                return found
        for index in _bits(there):
            found[index] = len(chain)
        return found

    def use(self, index: int, chain: Sequence[Block]) -> None:
        """A request with this chain was answered there."""
        held, bit = self._held[index], 1 << index
        for block in reversed(chain):
            if block in held:
                held.move_to_end(block)
            else:
                held[block] = None
                self._where[block] = self._where.get(block, 0) | bit
        while len(held) > self._capacities[index]:
            self._forget(index, held.popitem(last=False)[0])

    def clear(self, index: int) -> None:
        held = self._held[index]
        while held:
            self._forget(index, held.popitem()[0])

    def _forget(self, index: int, block: Block) -> None:
        if left := self._where[block] & ~(1 << index):
            self._where[block] = left
        else:
            del self._where[block]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


class Loads:
    """Blocks that each replica was lately given."""

    def __init__(self, number: int) -> None:
        self.of = [0.0] * number
        self._at = 0.0

    def forget(self, now: float) -> None:
        share = 0.5 ** (max(0.0, now - self._at) / DECAY_SECONDS)
        self.of, self._at = [each * share for each in self.of], now


def routed(matches: Sequence[int], loads: Sequence[float], most_uneven: float | None) -> int:
    """Where a request goes: to the longest match, the least loaded of several. `most_uneven`: not to a replica with so
    many times the mean load."""
    mean = fmean(loads)
    open_to = [
        index for index, load in enumerate(loads) if most_uneven is None or mean == 0 or load <= most_uneven * mean
    ]
    return min(open_to, key=lambda index: (-matches[index], loads[index]))


@dataclass(slots=True)
class _Slice:
    """Blocks of prompts, of the requests in a part of the time."""

    asked: int = 0
    gained: int = 0
    """Found by routing and not as it was; negative: the other way."""


def played(replicas: Sequence[Replica], traffic: Traffic, most_uneven: float | None) -> list[_Slice]:
    """The requests once more, routed, beside what each found where it went. NotPlayed where they are too many."""
    caches, loads = Caches([replica.capacity for replica in replicas]), Loads(len(replicas))
    counted = sum(isinstance(each, Request) and each.is_counted for each in traffic.requests)
    slices = [_Slice() for _ in range(SLICES)]
    number = steps = 0
    for request in traffic.requests:
        if not isinstance(request, Request):
            caches.clear(request[1])
            continue
        found = traffic.found(request)
        chain = [*found, *request.stored]
        prompt = chain[: len(found) + request.prompt]
        if (steps := steps + len(chain)) > MOST_STEPS:
            raise _too_much(is_counted=request.is_counted)
        matches = caches.matches(prompt)
        if max(matches) < len(found):  # it was cached before what is known of
            caches.use(request.replica, found)
            matches = caches.matches(prompt)
        loads.forget(request.at)
        index = routed(matches, loads.of, most_uneven)
        loads.of[index] += len(chain) - matches[index]
        caches.use(index, chain)
        if request.is_counted:
            part = slices[number * SLICES // counted]
            number += 1
            part.asked += len(prompt)
            part.gained += matches[index] - len(found)
    return slices


def from_events(replicas: Sequence[Replica]) -> Estimate | None:
    """What the events show, with its error; None where they show too little. NotPlayed where it is too much."""
    _bounded(replicas)
    now = _hit_rate([replica.counters for replica in replicas])
    queries = sum(replica.counters.queries for replica in replicas)
    traffic = traffic_of(replicas)
    size = fmean(replica.block_size for replica in replicas)
    low, high = 1.0, 0.0
    for most_uneven in (None, 1.25):
        slices = played(replicas, traffic, most_uneven)
        asked = sum(each.asked for each in slices)
        if sum(bool(each.asked) for each in slices) < SLICES or not queries:
            return None
        gained = [each.gained for each in slices]
        # Of all tokens of prompts: also of requests that stored nothing, and of blocks that were not full.
        scale = asked * size / queries
        share, error = sum(gained) / asked * scale, Z * scale * _deviation(gained, [each.asked for each in slices])
        low, high = min(low, share - error), max(high, share + error)
    counted = sum(isinstance(each, Request) and each.is_counted for each in traffic.requests)
    return Estimate(now, Interval(max(0.0, low), max(0.0, min(high, 1 - now))), counted)


def _bounded(replicas: Sequence[Replica]) -> None:
    """NotPlayed where the stored blocks alone, each of which is looked at, are too many: before anything is built of
    them."""
    before = whole = 0
    for replica in replicas:
        sizes = [len(event.blocks) if isinstance(event, Stored) else 0 for event in replica.events]
        before, whole = before + sum(sizes[: replica.before]), whole + sum(sizes)
    if whole > MOST_STEPS:
        raise _too_much(is_counted=before <= MOST_STEPS)


def _deviation(parts: Sequence[float], wholes: Sequence[float]) -> float:
    """Standard error of the ratio of sums (Cochran, Sampling Techniques, 6.3)."""
    number, whole = len(parts), sum(wholes)
    ratio = sum(parts) / whole
    residual = sum((part - ratio * of) ** 2 for part, of in zip(parts, wholes, strict=True))
    return sqrt(number / (number - 1) * residual) / whole
