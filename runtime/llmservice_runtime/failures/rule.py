"""The parts of a classification: phrases of a line, and places in vLLM's source."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from llmservice_runtime.contract import FailureReason

ANY_TEXT = "…"
"""Stands in a phrase for any text."""


@dataclass(frozen=True)
class Rule:
    """Phrases of which a line of the log holds one, the reason and the remedy; with `exit_codes`, only for those."""

    reason: FailureReason
    remedy: str
    phrases: tuple[str, ...]
    exit_codes: frozenset[int] = frozenset()
    warns: bool = False
    """Warnings count too."""

    def matches(self, text: str) -> bool:
        """Whether a line's text holds one of the phrases."""
        return any(holds(text, phrase) for phrase in self.phrases)


@dataclass(frozen=True)
class Place:
    """Files and folders of vLLM's package, and what an exception from there means; no names: whatever it is."""

    reason: FailureReason
    remedy: str
    files: tuple[str, ...]
    exceptions: Collection[str]


def holds(text: str, phrase: str) -> bool:
    """Whether the parts of a phrase follow each other in a text."""
    position = 0
    for part in phrase.split(ANY_TEXT):
        found = text.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return True


def rule(
    reason: FailureReason, remedy: str, *phrases: str, exit_codes: Collection[int] = (), warns: bool = False
) -> Rule:
    """A rule."""
    return Rule(reason, remedy, phrases, frozenset(exit_codes), warns)
