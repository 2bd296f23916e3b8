"""What was said so far, as the OpenAI API takes it, bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_TURNS = 200
MOST_CHARACTERS = 400_000
"""Of all turns: about 100,000 tokens."""

Message = dict[str, str]


@dataclass
class Conversation:
    """A question and its answer are one turn; the oldest turns are dropped where there are too many."""

    system: str | None = None
    dropped: int = 0
    """Turns."""
    _turns: list[tuple[str, str]] = field(default_factory=list)

    def asking(self, question: str) -> Sequence[Message]:
        """The messages of a request."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for asked, answered in self._turns:
            messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        return [*messages, {"role": "user", "content": question}]

    def keep(self, question: str, answer: str) -> int:
        """Remember a turn; the number of those that are dropped for it. Without an answer there is none."""
        if not answer:
            return 0
        self._turns.append((question, answer))
        before = len(self._turns)
        while len(self._turns) > MOST_TURNS or (len(self._turns) > 1 and self._length() > MOST_CHARACTERS):
            del self._turns[0]
        gone = before - len(self._turns)
        self.dropped += gone
        return gone

    def reset(self) -> None:
        """Forget all turns, and not the system message."""
        self._turns.clear()

    def _length(self) -> int:
        return sum(len(asked) + len(answered) for asked, answered in self._turns)
