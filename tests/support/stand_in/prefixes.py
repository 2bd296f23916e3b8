"""What the KV cache keeps of prompts, and how much of the next one is found there."""

from __future__ import annotations

from collections import OrderedDict

BLOCK = 64
"""Characters."""
TOKENS = 16
"""Of a block, about."""


class Prefixes:
    """Blocks of prompts, each known by itself and all before it; the longest unused ones are given up."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._known: OrderedDict[int, None] = OrderedDict()

    def take(self, prompt: str) -> float:
        """The share of the prompt that is found, 0 to 1; all of it is kept. As in vLLM the last block is computed."""
        chain, found, is_known = 0, 0, True
        whole = max(0, (len(prompt) - 1) // BLOCK)
        for number in range(whole):
            chain = hash((chain, prompt[number * BLOCK : (number + 1) * BLOCK]))
            is_known = is_known and chain in self._known
            found += is_known
            self._known[chain] = None
            self._known.move_to_end(chain)
        while len(self._known) > self._blocks:
            self._known.popitem(last=False)
        return found * BLOCK / len(prompt) if prompt else 0.0
