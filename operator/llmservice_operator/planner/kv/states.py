"""States of fixed size: Mamba, linear attention, short convolutions (vLLM, model_executor/layers/mamba)."""

from __future__ import annotations

from llmservice_operator.planner.kv.types import value_bytes
from llmservice_operator.planner.model.architecture import Attention
from llmservice_operator.planner.plan import Request

_KERNEL = 4
_SHORT_KERNEL = 3
"""Width of the convolution in published models, with a recurrent state and without; its state has one value less."""
_HEEDED = ("NemotronH", "Nemotron_Nano", "Qwen3_5", "Qwen4Exp")
"""Classes for which vLLM heeds the type of the recurrent state in config.json."""
_FLOAT32 = ("NemotronH", "Nemotron_Nano", "KimiLinear", "KimiK3", "Glm5Next")
"""Classes that keep it in float32 where config.json does not say it."""


def has_state(attention: Attention) -> bool:
    """Whether a layer keeps one, alone or beside attention."""
    return bool(attention.conv_values or attention.recurrent_values)


def state_bytes(request: Request, attention: Attention, ranks: int, wide: bool) -> int:
    """Of one request's state in one layer on one GPU. `wide`: CPUs with AVX-512 BF16 keep it in float32."""
    size = value_bytes(request)
    conv = attention.conv_values
    if attention.state_groups % ranks:
        # Every rank needs the groups of its own heads: they are made to be as many as ranks.
        conv += (ranks - attention.state_groups) * attention.group_values
    # Speculation keeps the values of tokens that may be taken back.
    kernel = _KERNEL if attention.recurrent_values else _SHORT_KERNEL
    conv += conv // (kernel - 1) * _guesses(request)
    recurrent = 4 if wide else _recurrent_bytes(request, attention, size)
    return conv // ranks * size + attention.recurrent_values // ranks * recurrent


def state_blocks(request: Request, attention: Attention) -> int:
    """States of one request: its own, one for each guessed token, and one or two for prefix caching.

    Prefix caching is taken to be on, as it is by default. Models of nothing but states have none.
    """
    architecture = request.architecture
    layers = architecture.layers if architecture is not None else ()
    if not any(layer.attention.heads for layer in layers):
        return 1 + _guesses(request)
    # Mamba 2, which alone has groups, writes one more at the end of a prompt.
    return 2 + _guesses(request) + (1 if attention.state_groups else 0)


def _recurrent_bytes(request: Request, attention: Attention, size: int) -> int:
    name = request.architecture.name if request.architecture is not None else ""
    if attention.recurrent_bytes and name.startswith(_HEEDED):
        return attention.recurrent_bytes
    return 4 if name.startswith(_FLOAT32) else size


def _guesses(request: Request) -> int:
    return request.draft.num_speculative_tokens if request.draft is not None else 0
