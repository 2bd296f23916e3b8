"""Reduces a model's config.json to the keys that its memory depends on. Pure; accepts any JSON object."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from llmservice_runtime.bounded_json import clean
from llmservice_runtime.inspection.config_keys import ENCODER_KEYS, ENCODER_SECTIONS, INSPECTED_KEYS, SECTION_KEYS
from llmservice_runtime.inspection.tensors import is_encoder, layers_of

__all__ = ["INSPECTED_KEYS", "SECTION_KEYS", "expanded", "modules", "selected", "shorter"]

Json = Mapping[str, Any]

_ROPE = frozenset({"rope_scaling", "rope_parameters"})
_ROPE_KEYS = frozenset({
    "rope_type", "type", "factor", "original_max_position_embeddings", "rope_theta", "partial_rotary_factor",
    "mrope_section",
})  # fmt: skip
_QUANTIZED = frozenset({"quantization_config", "compression_config"})
# Keys that only the quantizer uses.
_QUANTIZER_NOTES = frozenset({
    "meta", "dataset", "damp_percent", "true_sequential", "static_groups", "model_name_or_path", "model_file_base_name",
    "tokenizer", "observer", "observer_kwargs", "global_compression_ratio", "sparsity_config",
    "transform_config", "actorder", "export", "batch_size", "cache_block_outputs", "llm_int8_threshold",
    "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "bnb_4bit_quant_storage",
})  # fmt: skip
# A part of a module's name that is a number.
_NUMBER = re.compile(r"(?<![^.])[0-9]{1,9}(?![^.])")
_DEEPEST = 8
# Together with _DEEPEST within the depth that the operator accepts in an inspection.
_DEEPEST_SECTION = 3
_LARGEST = 2**63
_LONGEST_TEXT = 600
_FEW = 8
# Shorter values (characters of JSON) are not worth dropping.
_WORTH_A_CUT = 160


def selected(config: Json) -> dict[str, Any]:
    """The inspected keys in their order, sections included; null values are left out."""
    return _section(config, layers_of(config), INSPECTED_KEYS)


def _section(config: Json, layers: int | None, keys: frozenset[str], depth: int = 0) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in config.items():
        if name in SECTION_KEYS and isinstance(value, Mapping) and depth < _DEEPEST_SECTION:
            inner = ENCODER_KEYS if name in ENCODER_SECTIONS else INSPECTED_KEYS
            found: Any = _section(value, layers, inner, depth + 1)
        elif name not in keys:
            continue
        elif name in _ROPE:
            found = _rope(value)
        elif name in _QUANTIZED:
            found = _quantization(value, layers)
        else:
            found = _plain(value)
        if found is not None and found != {}:
            kept[name] = found
    return kept


def _plain(value: object, depth: int = 0) -> Any:
    """Numbers, texts, and lists and objects of them; None for other values and for those out of bounds."""
    if isinstance(value, bool) or _is_word(value):
        return value
    if isinstance(value, int):
        return value if abs(value) < _LARGEST else None
    if isinstance(value, float):
        return value if math.isfinite(value) and abs(value) < _LARGEST else None
    if depth >= _DEEPEST:
        return None
    if isinstance(value, Mapping):
        inner = {name: _plain(item, depth + 1) for name, item in value.items() if _is_word(name)}
        return {name: item for name, item in inner.items() if item is not None and item != {}}
    if isinstance(value, Sequence):
        return runs([_plain(item, depth + 1) for item in value])
    return None


def _is_word(value: object) -> bool:
    """Text that a status may hold; with any other the operator would refuse the whole inspection."""
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT and clean(value) == value


def runs(values: Sequence[Any]) -> list[Any]:
    """The list with repetitions as [value, count] where that is shorter; `expanded` is the inverse."""
    if len(values) <= _FEW:
        return list(values)
    found: list[Any] = []
    start = 0
    for end in range(1, len(values) + 1):
        if end < len(values) and _same(values[end], values[start]):
            continue
        count = end - start
        found += [[values[start], count]] if count > 1 else [values[start]]
        start = end
    return found if _length(found) < _length(values) else list(values)


def expanded(value: object) -> Any:
    """The inverse of `runs`."""
    if not isinstance(value, list):
        return value
    full: list[Any] = []
    for item in value:
        is_run = isinstance(item, list) and len(item) == 2 and type(item[1]) is int and item[1] > 0
        full += [item[0]] * item[1] if is_run else [item]
    return full


def _same(one: object, other: object) -> bool:
    """Equality that distinguishes True from 1."""
    return type(one) is type(other) and one == other


def _length(value: object) -> int:
    return len(json.dumps(value, separators=(",", ":")))


def _rope(value: object, *, is_outer: bool = True) -> Any:
    """RoPE parameters without the factors of single frequencies; also one level of parameters by kind of layer."""
    if not isinstance(value, Mapping):
        return None
    kept: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping) and is_outer:
            kept[name] = _rope(item, is_outer=False)
        elif name in _ROPE_KEYS and not isinstance(item, Mapping):
            kept[name] = _plain(item)
    return {name: item for name, item in kept.items() if item is not None}


def _quantization(value: object, layers: int | None, depth: int = 0) -> Any:
    """Methods, widths and groups; long lists of modules become patterns."""
    if isinstance(value, Mapping) and depth < _DEEPEST:
        items = {name: item for name, item in value.items() if _is_word(name) and name not in _QUANTIZER_NOTES}
        inner = {name: _quantization(item, layers, depth + 1) for name, item in items.items()}
        kept = {name: item for name, item in inner.items() if _says_something(name, item)}
        is_by_module = len(kept) > _FEW and all("." in name for name in kept)
        return _by_pattern(kept, layers) if is_by_module else kept
    if isinstance(value, list) and value and all(map(_is_word, value)):
        return modules(value, layers)
    return _plain(value, depth)


def _says_something(name: str, value: object) -> bool:
    """GPTQModel's "-:PATTERN" says all by its name: what it matches is not quantized."""
    return name.startswith("-:") or (value is not None and value not in ({}, []))


def _by_pattern(settings: Json, layers: int | None) -> dict[str, Any]:
    """Settings by module, grouped by equal settings."""
    alike: dict[str, list[str]] = {}
    for name, setting in settings.items():
        alike.setdefault(json.dumps(setting, sort_keys=True), []).append(name)
    return {pattern: json.loads(text) for text, names in alike.items() for pattern in modules(names, layers)}


def modules(names: Iterable[str], layers: int | None = None) -> list[str]:
    """Shorten a list of modules: `model.layers.*.mlp.gate` for all layers, else a pattern `re:...`.

    Existing patterns are kept. `layers` is the model's number of layers.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        is_pattern = name.startswith("re:") or "*" in name
        groups.setdefault(name if is_pattern else _NUMBER.sub("*", name), []).append(name)
    return [found[0] if len(found) == 1 else _pattern(group, found, layers) for group, found in groups.items()]


def _pattern(group: str, names: Sequence[str], layers: int | None) -> str:
    """`group` is the common name with * for numbers, of which the first is the layer."""
    if "*" not in group or group in names:
        return group
    numbers = {int(found[0]) for name in names if (found := _NUMBER.search(name))}
    if is_encoder(group.split(".")) or group.startswith("mtp"):
        return group
    # The prefix is the checkpoint's name of the language model; vLLM's may differ.
    prefix = found[0] if (found := re.match(r".+\.(?=(layers|h|blocks)\.\*)", group)) else ""
    stem = group[len(prefix) :]
    is_usual = prefix in ("", "model.")
    everywhere = group if is_usual else f"*{stem}"
    if layers is None or numbers.issuperset(range(layers)):
        return everywhere
    before, _, after = (re.escape(text).replace(r"\*", r"\d+") for text in stem.partition("*"))
    start = re.escape(prefix) if is_usual else ".*"
    return f"re:{start}{before}({_alternatives(numbers)}){after}"


def _alternatives(numbers: Iterable[int]) -> str:
    """A regular expression for a set of numbers: 3 to 60 is [3-9]|[1-5]\\d|60."""
    units: dict[int, set[int]] = {}
    for number in numbers:
        units.setdefault(number // 10, set()).add(number % 10)
    alike: dict[str, set[int]] = {}
    for tens, digits in sorted(units.items()):
        alike.setdefault(_class(digits), set()).add(tens)
    found = []
    for digits_class, all_tens in alike.items():
        found += [digits_class] if 0 in all_tens else []
        found += [_class(small) + digits_class] if (small := {tens for tens in all_tens if 0 < tens < 10}) else []
        found += [f"{tens}{digits_class}" for tens in sorted(all_tens) if tens >= 10]
    return "|".join(found)


def _class(digits: set[int]) -> str:
    if len(digits) == 10:
        return r"\d"
    ordered = sorted(digits)
    text = "".join(map(str, ordered))
    if len(text) == 1:
        return text
    is_run = len(text) > 2 and ordered[-1] - ordered[0] == len(text) - 1
    return f"[{ordered[0]}-{ordered[-1]}]" if is_run else f"[{text}]"


def shorter(config: Json) -> dict[str, Any] | None:
    """The configuration without its largest least important part; None where nothing more can be dropped."""
    for cut in (_fewer_modules, _no_encoder, _no_longest):
        less = _anywhere(cut, config)
        if less is not None:
            return less
    return None


def _anywhere(cut: Callable[[Json], dict[str, Any] | None], config: Json) -> dict[str, Any] | None:
    """Apply `cut` to the configuration, or to that of the language model inside."""
    if (less := cut(config)) is not None:
        return less
    for name in SECTION_KEYS:
        inner = config.get(name)
        if isinstance(inner, Mapping) and name not in ENCODER_SECTIONS and (less := _anywhere(cut, inner)) is not None:
            return {**config, name: less}
    return None


def _fewer_modules(config: Json) -> dict[str, Any] | None:
    """Halve the longest list of modules; the tensors show more exactly which of them are not quantized."""
    for name in _QUANTIZED:
        value = config.get(name)
        if isinstance(value, Mapping) and (less := _halved(value)) is not None:
            return {**config, name: less}
    return None


def _halved(value: Json) -> dict[str, Any] | None:
    long = [name for name, item in value.items() if isinstance(item, (list, Mapping)) and len(item) > _FEW]
    for name in sorted(long, key=lambda name: -_length(value[name])):
        item, half = value[name], len(value[name]) // 2
        return {**value, name: item[:half] if isinstance(item, list) else dict(list(item.items())[:half])}
    for name, item in value.items():
        if isinstance(item, Mapping) and (less := _halved(item)) is not None:
            return {**value, name: less}
    return None


def _no_encoder(config: Json) -> dict[str, Any] | None:
    """Drop an encoder's section; its weights are known from the tensors."""
    found = [name for name in config if name in ENCODER_SECTIONS]
    return {name: item for name, item in config.items() if name != found[0]} if found else None


def _no_longest(config: Json) -> dict[str, Any] | None:
    long = [
        name
        for name, item in config.items()
        if name not in SECTION_KEYS and isinstance(item, (list, Mapping, str)) and _length(item) > _WORTH_A_CUT
    ]
    longest = max(long, key=lambda name: _length(config[name]), default=None)
    return None if longest is None else {name: item for name, item in config.items() if name != longest}
