"""How far two engines say the same: greedy answers to the taught questions, token by token."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

from localcluster.tinymodel.pairs import PAIRS
from tests.support.serving import Endpoint

QUESTIONS = tuple(question for question, _ in PAIRS)
TAUGHT: Mapping[str, str] = dict(PAIRS)
AT_ONCE = 4


@dataclass(frozen=True)
class Spoken:
    """One greedy answer."""

    text: str
    tokens: tuple[int, ...]


def greedy(server: Endpoint, questions: Sequence[str] = QUESTIONS, model: str = "") -> dict[str, Spoken]:
    """The answers, a few at a time, so that the batch is a real one."""
    return asyncio.run(_greedy(server, questions, model or server.name))


async def _greedy(server: Endpoint, questions: Sequence[str], model: str) -> dict[str, Spoken]:
    seats = asyncio.Semaphore(AT_ONCE)
    async with server.client() as client:

        async def ask(question: str) -> Spoken:
            async with seats:
                return await _ask(client, model, question)

        return dict(zip(questions, await asyncio.gather(*map(ask, questions)), strict=True))


async def _ask(client: httpx.AsyncClient, model: str, question: str) -> Spoken:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 120,
        "return_token_ids": True,
    }
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return Spoken(choice["message"]["content"], tuple(choice["token_ids"]))


def shared_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens until the first that differs: greedy decoding does not come back from there."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def agreement(one: Mapping[str, Spoken], other: Mapping[str, Spoken]) -> float:
    """Share of `one`'s tokens that come before the first difference, over all questions."""
    shared = sum(shared_prefix(said.tokens, other[question].tokens) for question, said in one.items())
    return shared / sum(len(said.tokens) for said in one.values())


def taught(said: Mapping[str, Spoken]) -> int:
    """How many answers are word for word the taught ones."""
    return sum(spoken.text == TAUGHT[question] for question, spoken in said.items())
