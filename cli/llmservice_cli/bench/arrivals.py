"""The requests of a bench: who arrives when and asks for how much; the same options give the same load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

# Short and common, so that most tokenizers make one token of each; byte-level ones make one of each letter.
WORDS: Sequence[str] = (
    "the", "of", "and", "to", "in", "is", "it", "that", "was", "for", "on", "are", "with", "as", "his", "they",
    "at", "be", "this", "have", "from", "or", "one", "had", "by", "word", "but", "not", "what", "all", "were",
    "we", "when",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What makes a load; lengths are drawn with equal chances, so a length named twice is twice as likely."""

    requests: int
    rate: float | None  # arrivals a second, on average; None: each is sent when a client is free
    seed: int
    prompt_words: tuple[int, ...]
    output_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """One request before anybody sends it."""

    index: int
    arrival: float  # seconds after the first one
    prompt: str
    output_tokens: int


def make_load(options: LoadOptions) -> tuple[Planned, ...]:
    """A Poisson process of arrivals with mixed lengths.

    Arrivals, lengths and texts have a random stream each: another mix of lengths arrives at the same times.
    """
    gaps, lengths, texts = (Random(f"{options.seed} {stream}") for stream in ("arrivals", "lengths", "texts"))
    planned: list[Planned] = []
    arrival = 0.0
    for index in range(options.requests):
        words = lengths.choice(options.prompt_words)
        planned.append(
            Planned(
                index=index,
                arrival=arrival,
                prompt=" ".join(texts.choices(WORDS, k=words)),
                output_tokens=lengths.choice(options.output_tokens),
            )
        )
        arrival += 0.0 if options.rate is None else gaps.expovariate(options.rate)
    return tuple(planned)
