"""Models of other architectures than CHAT's, fresh and taught the same sentences."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from localcluster.tinymodel import lesson, teach
from localcluster.tinymodel.pairs import PAIRS
from localcluster.tinymodel.teach import Lesson
from localcluster.tinymodel.tokenizer import END, PAD, chat_tokenizer
from localcluster.tinymodel.variants import Taught


def make_taught(variant: Taught, out: Path, progress: Callable[[str], None]) -> Lesson:
    """Teach a fresh model of the variant's architecture and write it to `out`."""
    lesson.settle(variant.config)
    tokenizer = chat_tokenizer(variant.config.max_position_embeddings)
    model = _fresh_model(variant, tokenizer)
    taught = lesson.give(model, tokenizer, PAIRS, variant.config, progress)
    teach._save(model, tokenizer, out)
    return taught


def _fresh_model(variant: Taught, tokenizer: Any) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    end, pad = tokenizer.convert_tokens_to_ids([END, PAD])
    config = AutoConfig.for_model(
        variant.architecture,
        **variant.settings(),
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
    )
    return AutoModelForCausalLM.from_config(config).to(torch.float32)
