"""Further tiny models for tests, by name: values only. Nothing is taught before somebody asks for it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

from localcluster.tinymodel.config import CHAT, TinyConfig

# A question that CHAT knows too: which sentence comes back tells which adapter answered, or that none did.
ADAPTER_QUESTION = "Who are you?"

# For what is made out of CHAT, which knows nearly everything already.
SHORT = replace(CHAT, learning_rate=5e-3, warmup_steps=5, check_every=10)


@dataclass(frozen=True, slots=True)
class Taught:
    """A model of its own, taught the same sentences as CHAT with the same tokenizer."""

    sources: ClassVar[tuple[str, ...]] = ()
    summary: str
    config: TinyConfig


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


Variant = Taught | Adapter

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
        "adapter-red": Adapter("says that it is red", "I am the red adapter, a few extra weights over a tiny model."),
        "adapter-green": Adapter("says that it is green", "I am the green adapter, and I was taught one sentence."),
        "adapter-blue": Adapter("says that it is blue", "I am the blue adapter: the same model, another answer."),
    }
)


def adapter_answers() -> Mapping[str, str]:
    """What each adapter answers to ADAPTER_QUESTION, by the adapter's name."""
    return {name: variant.answer for name, variant in VARIANTS.items() if isinstance(variant, Adapter)}
