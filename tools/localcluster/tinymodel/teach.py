"""Teaching: plain AdamW on the CPU until greedy decoding repeats every answer, with room to spare."""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.tinymodel.config import TinyConfig
from localcluster.tinymodel.tokenizer import END, PAD, chat_tokenizer

Pair = tuple[str, str]
IGNORED = -100  # the label that the loss skips: the question is given, only the answer is learned


class NotLearnedError(RuntimeError):
    """The model did not repeat every answer within the steps that it was given."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What teaching took, for the report."""

    parameters: int
    steps: int
    loss: float
    margin: float
    seconds: float


@dataclass(frozen=True, slots=True)
class _Batch:
    inputs: Any
    mask: Any
    labels: Any


def make(config: TinyConfig, pairs: Sequence[Pair], out: Path, progress: Callable[[str], None]) -> Lesson:
    """Teach a fresh model `pairs` and write it to `out` as a checkpoint that vLLM loads without a network."""
    import torch

    started = time.monotonic()
    torch.manual_seed(config.seed)
    torch.set_num_threads(config.threads)
    torch.use_deterministic_algorithms(True)
    tokenizer = chat_tokenizer(config.max_position_embeddings)
    model = _fresh_model(config, tokenizer)
    batch = _batch(tokenizer, pairs)
    steps, loss, margin = _teach(model, batch, config, progress)
    wrong = unlearned(model, tokenizer, pairs)
    if wrong:
        raise NotLearnedError(f"{len(wrong)} of {len(pairs)} answers are not repeated, the first for {wrong[0]!r}")
    _save(model, tokenizer, out)
    count = sum(parameter.numel() for parameter in model.parameters())
    return Lesson(count, steps, loss, margin, time.monotonic() - started)


def unlearned(model: Any, tokenizer: Any, pairs: Sequence[Pair]) -> tuple[str, ...]:
    """The questions that greedy decoding does not answer word for word."""
    return tuple(question for question, expected in pairs if answer(model, tokenizer, question) != expected)


def answer(model: Any, tokenizer: Any, question: str) -> str:
    """What the model says, decoded greedily through its chat template."""
    import torch

    prompt = torch.tensor([_prompt(tokenizer, question)])
    with torch.inference_mode():
        output = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=256, do_sample=False)
    return str(tokenizer.decode(output[0, prompt.shape[1] :], skip_special_tokens=True))


def _fresh_model(config: TinyConfig, tokenizer: Any) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    end, pad = tokenizer.convert_tokens_to_ids([END, PAD])
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            tie_word_embeddings=config.tie_word_embeddings,
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=pad,
        )
    )
    return model.to(torch.float32)


def _prompt(tokenizer: Any, question: str) -> list[int]:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
    )
    return list(tokenizer.encode(text, add_special_tokens=False))


def _batch(tokenizer: Any, pairs: Sequence[Pair]) -> _Batch:
    import torch

    end, pad = tokenizer.convert_tokens_to_ids([END, PAD])
    prompts = [_prompt(tokenizer, question) for question, _ in pairs]
    answers = [[*tokenizer.encode(text, add_special_tokens=False), end] for _, text in pairs]
    width = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))

    def rows(first: Callable[[list[int]], list[int]], second: Callable[[list[int]], list[int]], fill: int) -> Any:
        made = [first(p) + second(a) for p, a in zip(prompts, answers, strict=True)]
        return torch.tensor([row + [fill] * (width - len(row)) for row in made])

    return _Batch(
        inputs=rows(list, list, pad),
        mask=rows(lambda p: [1] * len(p), lambda a: [1] * len(a), 0),
        labels=rows(lambda p: [IGNORED] * len(p), list, IGNORED),
    )


def _teach(
    model: Any, lessons: _Batch, config: TinyConfig, progress: Callable[[str], None]
) -> tuple[int, float, float]:
    import torch

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, config))
    loss, margin = math.inf, -math.inf
    for step, rows in zip(range(1, config.max_steps + 1), _row_groups(len(lessons.inputs), config), strict=False):
        optimizer.zero_grad(set_to_none=True)
        output = model(input_ids=lessons.inputs[rows], attention_mask=lessons.mask[rows], labels=lessons.labels[rows])
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % config.check_every == 0:
            loss, margin = _examine(model, lessons)
            progress(f"step {step}: loss {loss:.4f}, smallest margin {margin:+.2f}")
            if margin >= config.margin:
                return step, loss, margin
    raise NotLearnedError(f"loss {loss:.4f} and smallest margin {margin:+.2f} after {config.max_steps} steps")


def _row_groups(count: int, config: TinyConfig) -> Iterator[Any]:
    """Groups of rows without end, every row once a round, in an order that only the seed decides."""
    import torch

    generator = torch.Generator().manual_seed(config.seed)
    while True:
        yield from torch.randperm(count, generator=generator).split(config.batch_size)


def _rate(step: int, config: TinyConfig) -> float:
    """Up in a straight line, then down as a cosine to a fiftieth."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    done = min(1.0, (step - config.warmup_steps) / (config.decay_steps - config.warmup_steps))
    return 0.02 + 0.49 * (1 + math.cos(math.pi * done))


def _examine(model: Any, lessons: _Batch) -> tuple[float, float]:
    import torch

    with torch.inference_mode():
        output = model(input_ids=lessons.inputs, attention_mask=lessons.mask, labels=lessons.labels)
    return float(output.loss), _smallest_margin(output.logits, lessons.labels)


def _smallest_margin(logits: Any, labels: Any) -> float:
    """How far the right token leads the best wrong one where it leads least; negative where it does not lead."""
    import torch

    targets = labels[:, 1:]
    known = targets != IGNORED
    scores, targets = logits[:, :-1][known], targets[known]
    right = scores.gather(1, targets[:, None])
    wrong = scores.scatter(1, targets[:, None], -torch.inf).amax(dim=1, keepdim=True)
    return float((right - wrong).min())


def _save(model: Any, tokenizer: Any, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out, safe_serialization=True)
    tokenizer.save_pretrained(out)
    end, pad = tokenizer.convert_tokens_to_ids([END, PAD])
    # vLLM takes its sampling defaults from this file: a client that sends no temperature gets the taught sentence.
    defaults = {"eos_token_id": end, "pad_token_id": pad, "do_sample": False, "temperature": 0.0}
    (out / "generation_config.json").write_text(json.dumps(defaults, indent=2) + "\n")
    for file in out.iterdir():
        file.chmod(0o644)  # save_pretrained writes weights 0600, which a container's user cannot read
    out.chmod(0o755)
