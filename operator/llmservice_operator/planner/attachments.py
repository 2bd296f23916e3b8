"""What is loaded beside a model's own weights: draft models and heads that guess tokens, and room for LoRA adapters.

Drafts stand on the last pipeline stage and share the target's embedding and head (vllm/v1/spec_decode/eagle.py). Room
for adapters is taken at start: max_loras x rank for each linear, whether an adapter uses it or not (vllm/lora/layers).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmservice_operator.planner.model.architecture import Architecture, Incomplete, Layer, Linear, Part, Split
from llmservice_operator.planner.plan import Draft, Request
from llmservice_operator.planner.storage import Storage

EAGLE3_VOCABULARY = 32_000
"""Tokens that published EAGLE-3 heads guess among, with a head of their own."""
_WITHOUT_WEIGHTS = ("ngram", "ngram_gpu", "suffix")


def own_model(request: Request) -> Request | None:
    """The question for a draft model that is a whole model; None where there is none."""
    draft = request.draft
    if draft is None or not _is_whole(draft):
        return None
    if draft.architecture is None:
        raise Incomplete("the draft model's config.json")
    return replace(
        request,
        architecture=draft.architecture,
        tensors=None,
        quantization=None,
        weights="auto",
        tensor_parallel_size=draft.tensor_parallel_size or request.tensor_parallel_size,
        pipeline_parallel_size=1,
        draft=None,
        adapters=None,
        parameters=None,
        weights_gib=None,
    )


def _is_whole(draft: Draft) -> bool:
    return draft.method == "draftModel"


def head_linears(draft: Draft, target: Architecture) -> tuple[Linear, ...]:
    """Matrices of heads and layers that guess: Medusa's, EAGLE's, and the model's own for multi-token prediction.

    Their own config.json says how many layers an EAGLE has; else it is one like the target's. They share embedding and
    head with the target, but Medusa's heads and EAGLE-3's, whose vocabulary is smaller.
    """
    if _is_whole(draft) or draft.method in _WITHOUT_WEIGHTS:
        return ()
    hidden, known = target.hidden_size, draft.architecture
    if draft.method == "medusa":
        heads = draft.num_speculative_tokens or 1
        return (
            Linear("medusa.blocks", Part.MTP, hidden, hidden, Split.NONE, count=heads, plain=True),
            Linear("medusa.lm_heads", Part.MTP, hidden, target.vocab_size, count=heads, plain=True),
        )
    if draft.method == "mtp" and target.mtp_layer is not None:
        return target.mtp_layer.linears * max(1, target.mtp_layers)
    if draft.method == "mtp":
        layers: Sequence[Layer] = target.layers[-1:] * max(1, target.mtp_layers)
        joints = [Linear("mtp.eh_proj", Part.MTP, 2 * hidden, hidden, Split.NONE, plain=True)] * len(layers)
    else:
        layers = known.layers if known is not None and known.layers else _plain_layer(target)
        inputs = 3 if draft.method == "eagle3" else 2
        joints = [Linear("eagle.fc", Part.MTP, inputs * hidden, hidden, Split.NONE, plain=True)]
        if draft.method == "eagle3":
            words = min(EAGLE3_VOCABULARY, target.vocab_size)
            joints.append(Linear("eagle.lm_head", Part.MTP, hidden, words, plain=True))
    return (*(linear for layer in layers for linear in layer.linears), *joints)


def _plain_layer(target: Architecture) -> tuple[Layer, ...]:
    """One dense layer of the target, or the first where it has none."""
    dense = [layer for layer, _ in target.distinct_layers if layer.feed_forward.intermediate]
    return tuple((dense or list(target.layers))[:1])


def adapter_bytes(request: Request, layer: Layer, held: Storage) -> float:
    """Of the room for adapters in one layer, on each GPU."""
    if request.adapters is None:
        return 0
    ranks = request.tensor_parallel_size
    size = sum(_room(linear, ranks) for linear in layer.linears if not linear.plain or linear.module.endswith("gate"))
    return size * request.adapters.max_loras * request.adapters.max_lora_rank * held.value_bytes


def vocabulary_bytes(request: Request, architecture: Architecture, held: Storage) -> float:
    """Of the room for adapters of the embedding; as much is for the head. Ranks do not share it."""
    if request.adapters is None:
        return 0
    size = architecture.vocab_size + architecture.hidden_size
    return size * request.adapters.max_loras * request.adapters.max_lora_rank * held.value_bytes


def _room(linear: Linear, ranks: int) -> float:
    """Values of an adapter of rank 1: a row of inputs and a column of outputs. One of them is shared."""
    if linear.split is Split.NONE:
        return float(linear.inputs + linear.outputs)
    if linear.is_row_parallel:
        return linear.count * (linear.inputs / ranks + linear.outputs)
    return linear.count * (linear.inputs + linear.outputs / ranks)
