"""Sizes and schedule of a tiny model: values only, so that a smaller one can be taught the same text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TinyConfig:
    """One model to make; equal values make an equal model on an equal machine."""

    hidden_size: int = 256
    intermediate_size: int = 512
    num_layers: int = 2
    num_heads: int = 8
    num_kv_heads: int = 4
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = False
    seed: int = 20
    # One: at these sizes a second thread only waits at barriers, for milliseconds when others use its core.
    threads: int = 1
    learning_rate: float = 2e-3
    batch_size: int = 8
    warmup_steps: int = 20
    decay_steps: int = 180  # where the learning rate has come down; teaching usually ends about there
    check_every: int = 20
    max_steps: int = 800
    # The smallest gap between the best and the second-best token along every answer. Kernels of other engines and
    # other float types move logits by far less than this, so greedy decoding repeats the answers there too.
    margin: float = 3.0

    @property
    def head_dim(self) -> int:
        """Width of one attention head; vLLM's CPU kernels take 32 and above."""
        return self.hidden_size // self.num_heads


CHAT = TinyConfig()
