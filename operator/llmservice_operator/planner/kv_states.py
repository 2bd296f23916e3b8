"""States of fixed size: Mamba, linear attention (vLLM 0.32, model_executor/layers/mamba)."""

from __future__ import annotations

from llmservice_operator.planner.architecture import Attention
from llmservice_operator.planner.kv_types import value_bytes
from llmservice_operator.planner.plan import Request

_KERNEL = 4
"""Width of the convolution in every published model of these kinds; its state has one value less."""
_FLOAT32_STATES = ("NemotronH", "Nemotron_Nano", "NemotronNano", "Qwen3_5", "KimiLinear", "KimiK3", "Glm5Next")
"""Classes whose recurrent state is float32 whatever the compute type is."""
_MAMBA2 = ("Bamba", "FalconH1", "GraniteMoeHybrid", "Mamba2", "Nemotron", "Zamba2")
"""Classes with vLLM's Mamba2 mixer, which keeps one more state a request for prefix caching."""


def state_bytes(request: Request, attention: Attention, ranks: int, wide: bool) -> int:
    """Of one request's state in one layer on one GPU. `wide`: CPUs with AVX-512 BF16 keep it in float32."""
    plain = value_bytes(request)
    wide = wide or _name(request).startswith(_FLOAT32_STATES)
    conv = attention.conv_values
    # Speculation needs room for the tokens that may be taken back.
    conv += conv // (_KERNEL - 1) * _speculative(request)
    return conv // ranks * plain + attention.recurrent_values // ranks * (4 if wide else plain)


def state_blocks(request: Request) -> int:
    """States of one request: its own, one for each guessed token and, with prefix caching, the one before."""
    architecture = request.architecture
    attends = architecture is not None and any(
        layer.attention.kv_heads or layer.attention.latent_dim for layer in architecture.layers
    )
    # Models of states alone have no prefix caching.
    own = 1 if not attends else 3 if _name(request).startswith(_MAMBA2) else 2
    return own + _speculative(request)


def _speculative(request: Request) -> int:
    return request.draft.num_speculative_tokens if request.draft is not None else 0


def _name(request: Request) -> str:
    return request.architecture.name if request.architecture is not None else ""
