"""What is wrong with an LLMService, in words for the person who wrote it.

InvalidSpec     a stored object that this operator cannot act on; carries one Problem a field
"""

from collections.abc import Iterable
from dataclasses import dataclass

from llmservice_operator.api.reasons import Reason


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where, what, and what to do about it."""

    field: str
    message: str
    remedy: str = ""
    reason: Reason = Reason.INVALID_SPEC
    evidence: str = ""
    """What it was told by, where that is not the spec itself."""

    def __str__(self) -> str:
        text = f"{self.field}: {self.message}"
        return f"{text} {self.remedy}" if self.remedy else text


class InvalidSpec(Exception):
    """The object cannot be acted on until its author changes it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)))


class UnreadableObject(Exception):
    """An object of the API server is not what its kind says; names it, with little of what it holds."""
