"""Medusa heads for CHAT: each guesses a token further ahead, from the hidden state that gives the next one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from localcluster.tinymodel import lesson, teach
from localcluster.tinymodel.pairs import PAIRS
from localcluster.tinymodel.teach import NotLearnedError
from localcluster.tinymodel.variants import Medusa


class Head(nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """One residual block and its own logits, as in the paper (https://arxiv.org/abs/2401.10774)."""

    def __init__(self, logits: nn.Linear) -> None:
        super().__init__()
        self.block = nn.Linear(logits.in_features, logits.in_features, bias=False)
        self.logits = nn.Linear(logits.in_features, logits.out_features, bias=False)
        nn.init.zeros_(self.block.weight)  # it begins with the guess that the same token comes again
        self.logits.load_state_dict(logits.state_dict())

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """`hidden` of shape (..., hidden_size), the result (..., vocab_size)."""
        scores: torch.Tensor = self.logits(hidden + nn.functional.silu(self.block(hidden)))
        return scores


def make_medusa(variant: Medusa, base: Path, out: Path, progress: Callable[[str], None]) -> float:
    """Teach the heads on the hidden states of the model in `base`; the share of right guesses of the worst head.

    NotLearnedError where that stays below the variant's.
    """
    lesson.settle(variant.config)
    model, tokenizer = lesson.load(base)
    batch = teach._batch(tokenizer, PAIRS)
    with torch.no_grad():
        hidden = model.model(input_ids=batch.inputs, attention_mask=batch.mask).last_hidden_state
    heads = nn.ModuleList(Head(model.lm_head) for _ in range(variant.heads))
    share = _teach(heads, hidden, batch.labels, variant, progress)
    _save(heads, model.config, out)
    return share


def _teach(
    heads: nn.ModuleList, hidden: torch.Tensor, labels: torch.Tensor, variant: Medusa, progress: Callable[[str], None]
) -> float:
    optimizer = torch.optim.AdamW(heads.parameters(), lr=variant.config.learning_rate, weight_decay=0.0, fused=True)
    share: float = 0.0
    for step in range(1, variant.config.max_steps + 1):
        optimizer.zero_grad(set_to_none=True)
        losses, shares = zip(
            *(_guess(head, hidden, labels, 2 + place) for place, head in enumerate(heads)), strict=True
        )
        loss = torch.stack(losses).mean()
        loss.backward()
        optimizer.step()
        if step % variant.config.check_every == 0:
            share = float(min(shares))
            progress(f"step {step}: loss {float(loss):.4f}, the worst head right in {share:.0%}")
            if share >= variant.share:
                return share
    raise NotLearnedError(f"a head is right in {share:.0%} only after {variant.config.max_steps} steps")


def _guess(head: Head, hidden: torch.Tensor, labels: torch.Tensor, ahead: int) -> tuple[torch.Tensor, float]:
    """The loss of one head and the share of its right guesses, over the tokens of the answers."""
    targets = labels[:, ahead:]
    known = targets != teach.IGNORED
    scores = head(hidden[:, :-ahead][known])
    loss = nn.functional.cross_entropy(scores, targets[known])
    return loss, float((scores.argmax(dim=1) == targets[known]).float().mean())


def _save(heads: nn.ModuleList, base: Any, out: Path) -> None:
    """Under the names that vLLM's loader knows."""
    from safetensors.torch import save_file

    weights = {}
    for place, head in enumerate(heads):
        weights[f"blocks.{place}.layers.0.weight"] = head.block.weight.detach()
        weights[f"lm_heads.{place}.weight"] = head.logits.weight.detach()
    out.mkdir(parents=True)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": base.hidden_size,
        "vocab_size": base.vocab_size,
        "medusa_num_heads": len(heads),
        "medusa_num_layers": 1,
        "dtype": "float32",
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    lesson.let_everybody_read(out)
