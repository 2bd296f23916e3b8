"""What the makers of variants share: a process that computes the same every time, and one lesson."""

# teach.py is used as it is, its underscored helpers too: its bytes name CHAT's folder, which the CPU image carries, so
# that an edit there costs every clone a new image of five gigabytes.

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from localcluster.tinymodel import teach
from localcluster.tinymodel.config import TinyConfig
from localcluster.tinymodel.teach import Lesson, NotLearnedError, Pair, unlearned


def settle(config: TinyConfig) -> None:
    """Seed and threads as `config` says, and only deterministic kernels from here on."""
    import torch

    torch.manual_seed(config.seed)
    torch.set_num_threads(config.threads)
    torch.use_deterministic_algorithms(True)


def load(base: Path) -> tuple[Any, Any]:
    """A made model and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base, local_files_only=True)
    return model, AutoTokenizer.from_pretrained(base, local_files_only=True)


def give(
    model: Any, tokenizer: Any, pairs: Sequence[Pair], config: TinyConfig, progress: Callable[[str], None]
) -> Lesson:
    """Teach whatever of `model` is not frozen until every answer comes back word for word; else NotLearnedError."""
    started = time.monotonic()
    steps, loss, margin = teach._teach(model, teach._batch(tokenizer, pairs), config, progress)
    wrong = unlearned(model, tokenizer, pairs)
    if wrong:
        raise NotLearnedError(f"{len(wrong)} of {len(pairs)} answers are not repeated, the first for {wrong[0]!r}")
    count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return Lesson(count, steps, loss, margin, time.monotonic() - started)


def let_everybody_read(folder: Path) -> None:
    """Weights are written 0600, which a container's user cannot read."""
    for file in folder.iterdir():
        file.chmod(0o644)
    folder.chmod(0o755)
