"""Encoders of images and audio: their parameters, and the tokens of an image.

Blocks are counted by matrices, biases and norms, as in the classes of transformers 5. vLLM's own towers share the
matrices of their blocks over tensor-parallel ranks (mm_encoder_tp_mode weights, its default); parts before and after
the blocks are on every rank, and so are towers that vLLM takes from transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmservice_planner.model.architecture import Encoder
from llmservice_planner.model.config_keys import Keys


@dataclass(frozen=True, slots=True)
class _Tower:
    """Properties of a kind of encoder's blocks. The default is CLIP's and SigLIP's."""

    gated: bool = False
    biases: bool = True
    layer_norm: bool = True
    frames: int = 1
    """Images that one patch spans."""
    positions: bool = True
    own: bool = True
    """vLLM has its own class for it, which ranks share."""
    scaled: bool = False
    """Two scales of hidden width in each block."""


_TOWERS: Mapping[str, _Tower] = {
    "pixtral": _Tower(gated=True, biases=False, layer_norm=False, positions=False),
    "qwen2_vl": _Tower(frames=2, positions=False),
    "qwen2_5_vl": _Tower(gated=True, layer_norm=False, frames=2, positions=False),
    "qwen2_5_omni_vision_encoder": _Tower(gated=True, layer_norm=False, frames=2, positions=False),
    "glm4v": _Tower(gated=True, biases=False, layer_norm=False, frames=2),
    "glm4v_moe": _Tower(gated=True, biases=False, layer_norm=False, frames=2),
    "internvl_vision": _Tower(scaled=True),
    "intern_vit_6b": _Tower(scaled=True),
    "gemma4_vision": _Tower(gated=True, biases=False, layer_norm=False, own=False),
    "gemma4_unified_vision": _Tower(gated=True, biases=False, layer_norm=False, own=False),
}
_FRAMES = frozenset({"qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"})
"""As the default, with patches of two images."""
_MOBILENET = 300_000_000
"""Gemma 3n's mobilenetv5_300m_enc, by its name; config.json does not describe it."""
_CHANNELS = 3
_LARGEST_PICTURE = 16_384
"""Tokens of the largest image of Qwen-VL's preprocessors, unless the file states it."""
_LARGEST_VIDEO = 12_288
"""Tokens of a video of Qwen3-VL, whose preprocessor shrinks frames with their number (24,576 x 32 x 32 pixels, two
frames to a token)."""
_PAIRS = frozenset({"qwen2_vl", "qwen2_5_vl"})
"""Models whose frames are as large as images."""
_MOST_PAIRS = 7
"""Frames in the video that vLLM profiles with (qwen2_vl.py, _MAX_FRAMES_PER_VIDEO)."""
_VIDEO_OF_GEMMA_4 = 32 * (70 + 2 + 6)
"""32 frames of 70 tokens, each with two marks and a time (gemma4_mm.py, get_mm_max_tokens_per_item)."""
_WHOLE = frozenset({"gemma3", "paligemma"})
"""Models whose images are in one step (transformers_utils/model_arch_config_convertor.py, is_mm_prefix_lm)."""
_GEMMA_4 = ("gemma4", "gemma4_unified")
_TILES = 13
"""InternVL's twelve tiles and the thumbnail."""


def read(document: Mapping[str, Any], hidden: int) -> Encoder:
    """From vision_config and audio_config; empty without them."""
    keys = Keys(document)
    section = keys.section("vision_config")
    outer, thinker = keys.text("model_type") or "", keys.section("thinker_config")
    if section is None and thinker is not None:
        keys, section = thinker, thinker.section("vision_config")
    found = Encoder() if section is None else _pictures(keys, section, hidden)
    if found.tokens and outer in _GEMMA_4:
        found = replace(found, video=_VIDEO_OF_GEMMA_4, is_whole=_is_bidirectional(keys))
    elif found.tokens and outer in _WHOLE:
        found = replace(found, is_whole=True)
    audio = keys.section("audio_config")
    if audio is None:
        return found
    heard = _sound(audio, hidden)
    parameters, shared = found.parameters + heard.parameters, found.shared + heard.shared
    return replace(found, parameters=parameters, shared=shared)


def _is_bidirectional(keys: Keys) -> bool:
    """Whether Gemma 4's images attend to their own later tokens. Files without the key are distinguished by per-layer
    embeddings: published models with them have null, those without have vision."""
    text = keys.section("text_config") or keys
    stated = text.raw("use_bidirectional_attention")
    return stated == "vision" if stated is not None else not text.count("hidden_size_per_layer_input")


def _pictures(keys: Keys, section: Keys, hidden: int) -> Encoder:
    model_type = (section.text("model_type") or keys.text("model_type") or "").removesuffix("_vision")
    model_type = model_type if model_type in _TOWERS or model_type in _FRAMES else section.text("model_type") or ""
    if section.text("architecture") is not None and not section.has("num_hidden_layers"):
        return Encoder(_MOBILENET + section.count("hidden_size") * hidden, 0, _tokens(keys, section, model_type))
    tower = _Tower(frames=2) if model_type in _FRAMES else _TOWERS.get(model_type, _Tower())
    width = section.integer("embed_dim", "width", "hidden_size")
    layers = section.integer("num_hidden_layers", "depth", "layers", "num_layers", least=0)
    if width is None or layers is None:
        return Encoder()
    inner = section.integer("intermediate_size") or int((section.number("mlp_ratio") or 4) * width)
    if model_type.startswith("glm4v"):
        inner = section.integer("out_hidden_size") or inner
    matrices = layers * (4 * width * width + (3 if tower.gated else 2) * width * inner)
    small = layers * _small(tower, width, inner) + _patches(tower, section, width)
    joint = _joint(keys, section, model_type, width, hidden)
    tokens = _tokens(keys, section, model_type)
    # A patch's state twice and the inside of its MLP; several patches form a token.
    patches = _patches_of_token(keys, section, tokens)
    outside, inside = 2 * width * patches, inner * (2 if tower.gated else 1) * patches
    seen = Encoder(
        matrices + small + joint, tokens=tokens, outputs=1 + len(section.values("deepstack_visual_indexes") or ())
    )
    if model_type in _PAIRS:
        seen = replace(seen, video=_MOST_PAIRS * tokens, frames=tokens)
    elif model_type in _FRAMES:
        seen = replace(seen, video=_LARGEST_VIDEO)
    if not tower.own:
        return replace(seen, values=outside + inside)
    return replace(seen, shared=matrices, values=outside, shared_values=inside)


def _patches_of_token(keys: Keys, section: Keys, tokens: int) -> int:
    merge = section.integer("spatial_merge_size") or keys.integer("spatial_merge_size")
    merge = merge or section.integer("pooling_kernel_size")
    if merge is not None:
        return merge**2
    side = _side(section, "image_size") // (_side(section, "patch_size") or 14)
    return max(1, side * side // tokens) if tokens else 1


def _small(tower: _Tower, width: int, inner: int) -> int:
    """Biases and norms of one block."""
    norms = width * (4 if tower.layer_norm else 2) + (2 * width if tower.scaled else 0)
    return norms + (5 * width + inner * (2 if tower.gated else 1) if tower.biases else 0)


def _patches(tower: _Tower, section: Keys, width: int) -> int:
    """Parts before the blocks: the patches' projection and the positions."""
    patch = _side(section, "patch_size") or 14
    total = _CHANNELS * tower.frames * patch * patch * width + 3 * width
    if not tower.positions:
        return total
    stated = section.integer("num_position_embeddings") or 2 * section.count("position_embedding_size")
    return total + (stated or (_side(section, "image_size", default=336) // patch) ** 2 + 1) * width


def _side(section: Keys, name: str, default: int = 0) -> int:
    """Side of an image or patch: a number, or the larger of two."""
    value = section.raw(name)
    if isinstance(value, list | tuple):
        return max((section.checked(name, one) for one in value), default=default)
    return section.count(name, default=default)


def _joint(keys: Keys, section: Keys, model_type: str, width: int, hidden: int) -> int:
    """The projection from the encoder into the model."""
    outer = keys.text("model_type") or ""
    if model_type.startswith(("qwen2_vl", "qwen2_5_vl", "qwen3", "qwen2_5_omni")):
        wide = width * (section.integer("spatial_merge_size") or 2) ** 2
        out = (
            section.integer("out_hidden_size")
            or (section.has("embed_dim") and section.integer("hidden_size"))
            or hidden
        )
        mergers = 1 + len(section.values("deepstack_visual_indexes") or ())
        return mergers * (wide * wide + wide * out + wide + out + 2 * wide)
    if model_type.startswith("glm4v"):
        out, inner = section.integer("out_hidden_size") or hidden, section.count("intermediate_size")
        return out * out + 3 * out * inner + width * out * 4
    if outer.startswith(("gemma3", "paligemma", "gemma4")):
        return width * hidden + width
    if model_type.startswith("llama4"):
        mid, out = section.count("projector_input_dim", default=4096), section.count("vision_output_dim", default=4096)
        projected = section.count("projector_output_dim", default=4096)
        return section.count("intermediate_size") * mid + mid * projected + out * hidden
    if outer == "mistral3":
        merge = keys.integer("spatial_merge_size") or 2
        return width * merge * merge * width + width * hidden + hidden * hidden
    middle = keys.integer("alignment_intermediate_size")
    if middle is not None:
        return width * (keys.integer("downsample_factor") or 2) ** 2 * middle + middle // 2 * hidden
    if outer.startswith("internvl"):
        width *= round(1 / (keys.number("downsample_ratio") or 0.5)) ** 2
    return width * hidden + hidden * hidden + 2 * hidden


def _tokens(keys: Keys, section: Keys, model_type: str) -> int:
    stated = keys.integer(
        "mm_tokens_per_image", "vision_soft_tokens_per_image", "image_seq_length", "tokens_per_image", "num_image_token"
    )
    outer = keys.text("model_type") or ""
    if outer.startswith("internvl"):
        return (stated or 256) * _TILES
    if stated is not None:
        return stated
    if model_type.startswith(("qwen", "glm4v")):
        return _LARGEST_PICTURE
    patch = _side(section, "patch_size") or 14
    merge = keys.integer("spatial_merge_size") or 1
    return (_side(section, "image_size", default=336) // (patch * merge)) ** 2


def _sound(section: Keys, hidden: int) -> Encoder:
    """A Whisper-like encoder, or a conformer (Gemma 3n)."""
    width = section.integer("d_model", "hidden_size")
    layers = section.integer("encoder_layers", "conf_num_hidden_layers", "num_hidden_layers", least=0)
    if width is None or layers is None:
        return Encoder()
    if section.has("conf_num_hidden_layers") or not section.has("encoder_ffn_dim", "intermediate_size"):
        # Two MLPs of four times the width, attention with relative positions, a gated convolution.
        return Encoder(layers * 24 * width * width + width * hidden)
    inner = section.integer("encoder_ffn_dim", "intermediate_size") or 4 * width
    matrices = layers * (4 * width * width + 2 * width * inner)
    return Encoder(matrices + layers * 12 * width + width * hidden, matrices)
