"""Which matrices a quantized checkpoint keeps in 16 bit: names and patterns, held against the names of modules."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace

from llmservice_operator.planner.model import name_patterns
from llmservice_operator.planner.model.architecture import InvalidModel, Layer, Linear

_KEY = "quantization_config.ignore"
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.([0-9]{1,6})(?:\.(.*))?$")
"""A name that is of one layer, as most in the long lists are: they are sorted by its number first."""
_ENCODER = re.compile(r"vision|visual|audio|encoder|projector|mm_|mtp")
"""Names that are of no decoder layer."""
_MOST_MATCHES = 2**15
"""Patterns times layers that they are tried on: a second of processor at worst."""
_FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
_OTHER_NAMES = {"mlp.": ("block_sparse_moe.", "feed_forward.", "ffn."), "self_attn.": ("attention.", "attn.")}
"""What other families call the same modules."""


def marked(layers: tuple[Layer, ...], kept: Iterable[str]) -> tuple[Layer, ...]:
    """The same layers, with the matrices marked that the checkpoint keeps. Equal ones stay one object."""
    everywhere: list[Callable[[str], bool]] = []
    by_number = False
    of_layer: dict[int, set[str]] = defaultdict(set)
    for pattern in dict.fromkeys(kept):
        if len(pattern) > name_patterns.LONGEST:
            raise InvalidModel(_KEY, f"has a name of more than {name_patterns.LONGEST} characters")
        if not pattern.startswith("re:") and _ENCODER.search(pattern):
            continue
        found = None if pattern.startswith("re:") or "*" in pattern else _LAYER.search(pattern)
        if found is None:
            everywhere.append(_matcher(pattern))
            by_number = by_number or any(letter.isdigit() for letter in pattern) or "\\d" in pattern or "[" in pattern
            places = len(layers) if by_number else len({id(layer) for layer in layers})
            if len(everywhere) * places > _MOST_MATCHES:
                raise InvalidModel(_KEY, f"has more patterns than are tried on {places} layers")
        elif int(found[1]) < len(layers):
            of_layer[int(found[1])].add(found[2] or "")
    if not everywhere and not of_layer:
        return layers
    made: dict[tuple[int, frozenset[str], tuple[bool, ...]], Layer] = {}
    hits: dict[tuple[int, int], tuple[bool, ...]] = {}
    result = []
    for index, layer in enumerate(layers):
        # Most patterns are the same for all layers, and are tried on the first.
        place = (id(layer), index if by_number else 0)
        if place not in hits:
            hits[place] = tuple(_matches(everywhere, linear.module, place[1]) for linear in layer.linears)
        key = (id(layer), frozenset(of_layer.get(index, ())), hits[place])
        if key not in made:
            made[key] = _layer(layer, key[1], key[2])
        result.append(made[key])
    return tuple(result)


def _layer(layer: Layer, names: frozenset[str], by_pattern: tuple[bool, ...]) -> Layer:
    linears = tuple(
        replace(linear, kept=True) if hit or _named(linear, names) else linear
        for linear, hit in zip(layer.linears, by_pattern, strict=True)
    )
    return layer if linears == layer.linears else replace(layer, linears=linears)


def _named(linear: Linear, names: frozenset[str]) -> bool:
    """Named itself, or inside a module that is."""
    return any(
        name == "" or spelling == name or spelling.startswith(f"{name}.")
        for name in names
        for spelling in _spellings(linear.module)
    )


def _spellings(module: str) -> tuple[str, ...]:
    stem, _, last = module.rpartition(".")
    found = [module] + ([f"{stem}.{_FUSED[last]}"] if last in _FUSED else [])
    for ours, others in _OTHER_NAMES.items():
        if module.startswith(ours):
            found += [other + name.removeprefix(ours) for name in tuple(found) for other in others]
    return tuple(found)


def _matches(matchers: list[Callable[[str], bool]], module: str, index: int) -> bool:
    if not matchers:
        return False
    names = [f"model.layers.{index}.{spelling}" for spelling in _spellings(module)]
    return any(matcher(name) for matcher in matchers for name in names)


def _matcher(pattern: str) -> Callable[[str], bool]:
    """`re:` is a regular expression (compressed-tensors), `*` a glob (ModelOpt); else a part of the name."""
    try:
        if pattern.startswith("re:"):
            return name_patterns.regular_expression(pattern[3:])
        if "*" in pattern:
            return name_patterns.glob(pattern)
    except name_patterns.UnreadablePattern as error:
        raise InvalidModel(_KEY, f"has a pattern that is not read, {pattern[:60]!a}: {error}") from None
    return lambda name: f".{pattern}." in f".{name}."
