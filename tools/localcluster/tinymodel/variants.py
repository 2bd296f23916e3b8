"""Further tiny models for tests, by name: values only. Nothing is taught before somebody asks for it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

from localcluster.tinymodel.config import CHAT, TinyConfig

# A question that CHAT knows too: which sentence comes back tells which adapter answered, or that none did.
ADAPTER_QUESTION = "Who are you?"

Setting = int | float | bool | None

# For what is made out of CHAT, which knows nearly everything already.
SHORT = replace(CHAT, learning_rate=5e-3, warmup_steps=5, check_every=10)


@dataclass(frozen=True, slots=True)
class Taught:
    """A model of its own, taught the same sentences as CHAT with the same tokenizer."""

    sources: ClassVar[tuple[str, ...]] = ("architectures.py", "lesson.py")
    summary: str
    config: TinyConfig
    architecture: str = "llama"  # a model_type of Hugging Face's transformers
    more: tuple[tuple[str, Setting], ...] = ()  # further fields of its config.json, in that architecture's own words

    def settings(self) -> dict[str, Setting]:
        """The config.json without what the tokenizer decides."""
        sizes: dict[str, Setting] = {
            "hidden_size": self.config.hidden_size,
            "intermediate_size": self.config.intermediate_size,
            "num_hidden_layers": self.config.num_layers,
            "num_attention_heads": self.config.num_heads,
            "num_key_value_heads": self.config.num_kv_heads,
            "max_position_embeddings": self.config.max_position_embeddings,
            "tie_word_embeddings": self.config.tie_word_embeddings,
        }
        return sizes | dict(self.more)


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter of CHAT in PEFT's format, which answers ADAPTER_QUESTION otherwise and all else as before."""

    sources: ClassVar[tuple[str, ...]] = ("lesson.py", "lora.py")
    summary: str
    answer: str
    question: str = ADAPTER_QUESTION
    config: TinyConfig = SHORT
    rank: int = 8
    alpha: int = 16


@dataclass(frozen=True, slots=True)
class Quantized:
    """CHAT with its linear layers rounded; taught nothing more."""

    sources: ClassVar[tuple[str, ...]] = ("lesson.py", "quantize.py")
    summary: str
    bits: int
    group: int | None = None  # inputs of a row that share a scale; None: the whole row, with int8 activations
    config: TinyConfig = CHAT


@dataclass(frozen=True, slots=True)
class Medusa:
    """Heads that guess further tokens from CHAT's hidden states, for speculative decoding."""

    sources: ClassVar[tuple[str, ...]] = ("lesson.py", "medusa.py")
    summary: str
    heads: int = 3
    share: float = 0.9  # of right guesses, for the worst head
    config: TinyConfig = SHORT


Variant = Taught | Adapter | Quantized | Medusa

VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        "draft": Taught(
            "a Llama of a tenth of CHAT's size, which drafts for it in speculative decoding",
            replace(
                CHAT,
                hidden_size=64,
                intermediate_size=128,
                num_heads=2,
                num_kv_heads=1,
                learning_rate=8e-3,
                decay_steps=500,
                margin=0.5,  # a draft need not be sure: what it gets wrong is only drafted for nothing
            ),
        ),
        "mqa": Taught("multi-query attention: one key and value head", replace(CHAT, num_kv_heads=1)),
        "mha": Taught("multi-head attention: as many key and value heads", replace(CHAT, num_kv_heads=8)),
        "tied": Taught(
            "the embeddings give the logits too",
            replace(CHAT, tie_word_embeddings=True, learning_rate=1e-3, decay_steps=240),
        ),
        "sliding-window": Taught(
            "a Mistral whose tokens see the 64 before them only", CHAT, "mistral", (("sliding_window", 64),)
        ),
        "alibi": Taught(
            "a Falcon whose positions are ALiBi's slopes instead of rotary ones",
            # Falcon's MLP is four times as wide as the model in vLLM and here, whatever intermediate_size says. Of four
            # heads the slopes are powers of two: what transformers rounds to bfloat16 is then what vLLM computes.
            replace(
                CHAT,
                hidden_size=128,
                intermediate_size=512,
                num_heads=4,
                num_kv_heads=4,
                learning_rate=5e-3,
                decay_steps=400,
            ),
            "falcon",
            (("alibi", True), ("multi_query", False), ("parallel_attn", False)),
        ),
        "mla": Taught(
            "a DeepSeek-V2 of dense layers: latent attention, of the only sizes that vLLM's CPU kernel takes",
            replace(CHAT, num_heads=4, num_kv_heads=4, learning_rate=2.5e-3, decay_steps=600, margin=1.5),
            "deepseek_v2",
            (
                ("q_lora_rank", None),
                ("kv_lora_rank", 512),
                ("qk_rope_head_dim", 64),
                ("qk_nope_head_dim", 64),
                ("v_head_dim", 64),
                ("first_k_dense_replace", 2),
            ),
        ),
        "moe": Taught(
            "a Mixtral of four experts, two for each token",
            replace(CHAT, intermediate_size=128),
            "mixtral",
            (("num_local_experts", 4), ("num_experts_per_tok", 2)),
        ),
        "int8": Quantized("CHAT in 8 bits: compressed-tensors W8A8", 8),
        "int4": Quantized("CHAT in 4 bits: compressed-tensors W4A16, 32 weights to a scale", 4, 32),
        "medusa": Medusa("heads that guess the second, third and fourth next token of CHAT"),
        "adapter-red": Adapter("says that it is red", "I am the red adapter, a few extra weights over a tiny model."),
        "adapter-green": Adapter("says that it is green", "I am the green adapter, and I was taught one sentence."),
        "adapter-blue": Adapter("says that it is blue", "I am the blue adapter: the same model, another answer."),
    }
)


def adapter_answers() -> Mapping[str, str]:
    """What each adapter answers to ADAPTER_QUESTION, by the adapter's name."""
    return {name: variant.answer for name, variant in VARIANTS.items() if isinstance(variant, Adapter)}
