"""A fleet of servers with prefix caches, and traffic for it: what the estimate of `llmservice advise` is held against.
It shares no code with it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

BLOCK = 16
"""Tokens."""
TOKENS_PER_SECOND = 40.0
"""Of an answer."""


@dataclass(frozen=True)
class Traffic:
    """Conversations: each begins with one of a few shared beginnings, and each turn adds to what was said."""

    seed: int
    replicas: int = 4
    requests: int = 3000
    per_second: float = 8.0
    beginnings: int = 8
    """System prompts or documents, the first the most common (Zipf); 0: each conversation has its own."""
    beginning_tokens: int = 600
    turns: int = 6
    """At most."""
    turn_tokens: int = 150
    answer_tokens: int = 200
    think_seconds: float = 20.0
    capacity: int = 20_000
    """Blocks of a replica's cache."""


@dataclass(frozen=True)
class Request:
    at: float
    tokens: int
    """Of the prompt."""
    prompt: tuple[int, ...]
    """Its full blocks, each a hash of all tokens to its end."""
    answer: tuple[int, ...]
    """The blocks that become full while it is answered."""
    seconds: float
    """Until it is answered."""


@dataclass
class _Text:
    """What was said in a conversation so far."""

    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)

    def add(self, tokens: Sequence[int]) -> list[int]:
        """The blocks that became full."""
        self.tokens += tokens
        known = len(self.blocks)
        for start in range(known * BLOCK, len(self.tokens) - BLOCK + 1, BLOCK):
            before = self.blocks[-1] if self.blocks else 0
            self.blocks.append(hash((before, *self.tokens[start : start + BLOCK])))
        return self.blocks[known:]


def requests_of(traffic: Traffic) -> list[Request]:
    """By time."""
    rng = random.Random(traffic.seed)
    weights = [1 / (rank + 1) for rank in range(traffic.beginnings)]
    found: list[Request] = []
    said, clock = 0, 0.0

    def new(number: float) -> range:
        nonlocal said
        said += (length := max(1, int(number)))
        return range(-said, length - said)

    # Twice as many, since conversations that begin later may end later.
    while len(found) < 2 * traffic.requests:
        clock += rng.expovariate(traffic.per_second / ((1 + traffic.turns) / 2))
        text, at = _Text(), clock
        if traffic.beginnings:
            which = rng.choices(range(traffic.beginnings), weights)[0]
            text.add(range(which << 32, (which << 32) + traffic.beginning_tokens + 37 * which))
        else:
            text.add(new(traffic.beginning_tokens))
        for _ in range(rng.randint(1, traffic.turns)):
            text.add(new(rng.expovariate(1 / traffic.turn_tokens)))
            prompt, tokens = tuple(text.blocks), len(text.tokens)
            answered = new(rng.expovariate(1 / traffic.answer_tokens))
            seconds = len(answered) / TOKENS_PER_SECOND
            found.append(Request(at, tokens, prompt, tuple(text.add(answered)), seconds))
            at += seconds + rng.expovariate(1 / traffic.think_seconds)
    return sorted(found, key=lambda request: request.at)[: traffic.requests]


VLLMEvent = tuple[float, int | None, tuple[int, ...]] | tuple[float, tuple[int, ...]]
Choice = Callable[[Request, Sequence["Server"]], int]


@dataclass
class Server:
    """One replica. `events`: what vLLM says of its cache, as (seconds, parent, blocks stored) or (seconds, blocks
    removed)."""

    capacity: int
    held: dict[int, None] = field(default_factory=dict)
    busy_until: list[float] = field(default_factory=list)
    queries: int = 0
    hits: int = 0
    events: list[tuple[float, int | None, tuple[int, ...]] | tuple[float, tuple[int, ...]]] = field(
        default_factory=list
    )

    def match(self, request: Request) -> int:
        """Blocks; the last token of a prompt is always computed."""
        most = (request.tokens - 1) // BLOCK
        return next(
            (n for n, block in enumerate(request.prompt) if block not in self.held), min(len(request.prompt), most)
        )

    def load(self, now: float) -> int:
        self.busy_until = [until for until in self.busy_until if until > now]
        return len(self.busy_until)

    def answer(self, request: Request) -> None:
        found = min(self.match(request), (request.tokens - 1) // BLOCK)
        self.queries += request.tokens
        self.hits += found * BLOCK
        self.busy_until.append(request.at + request.seconds)
        whole = (*request.prompt, *request.answer)
        if new := tuple(block for block in request.prompt[found:] if block not in self.held):
            self.events.append((request.at, request.prompt[found - 1] if found else None, new))
        for number, block in enumerate(request.answer, len(request.prompt)):
            at = request.at + (number + 1 - len(request.prompt)) * BLOCK / TOKENS_PER_SECOND
            self.events.append((at, whole[number - 1] if number else None, (block,)))
        for block in reversed(whole):  # the end of a chain goes first
            self.held.pop(block, None)
            self.held[block] = None
        gone = []
        while len(self.held) > self.capacity:
            gone.append(block := next(iter(self.held)))
            del self.held[block]
        if gone:
            self.events.append((request.at, tuple(gone)))


@dataclass(frozen=True)
class Fleet:
    """Servers after traffic, and what each had counted before each request."""

    servers: Sequence[Server]
    counted: Sequence[Sequence[tuple[int, int]]]

    def between(self, first: int, last: int) -> list[tuple[int, int]]:
        """Queries and hits of each, from one request to another."""
        pairs = zip(self.counted[first], self.counted[last], strict=True)
        return [(after[0] - before[0], after[1] - before[1]) for before, after in pairs]

    def hit_rate(self, first: int, last: int) -> float:
        parts = self.between(first, last)
        return sum(hits for _, hits in parts) / sum(queries for queries, _ in parts)


def served(traffic: Traffic, requests: Sequence[Request], choose: Choice) -> Fleet:
    servers = [Server(traffic.capacity) for _ in range(traffic.replicas)]
    counted = []
    for request in requests:
        counted.append([(server.queries, server.hits) for server in servers])
        servers[choose(request, servers)].answer(request)
    return Fleet(servers, counted)


def by_chance(seed: int) -> Choice:
    """As kube-proxy spreads connections."""
    rng = random.Random(seed)
    return lambda request, servers: rng.randrange(len(servers))


def by_prefix(request: Request, servers: Sequence[Server]) -> int:
    """As a router that knows the caches, until replicas differ too much in what they work on."""
    loads = [server.load(request.at) for server in servers]
    if max(loads) - min(loads) > 16 and max(loads) > 1.5 * min(loads):
        return loads.index(min(loads))
    return min(range(len(servers)), key=lambda index: (-servers[index].match(request), loads[index]))
