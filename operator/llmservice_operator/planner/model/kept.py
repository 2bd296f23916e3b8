"""Which matrices a quantized checkpoint keeps in 16 bit: names and patterns, held against the names of modules."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from fnmatch import translate

from llmservice_operator.planner.model.architecture import InvalidModel, Layer, Linear

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)(?:\.(.*))?$")
"""A name that is of one layer, as most in the long lists are: they are sorted by its number first."""
_ENCODER = re.compile(r"vision|visual|audio|encoder|projector|mm_|mtp")
"""Names that are of no decoder layer."""
_QUANTIFIER = re.compile(r"[*+?{]")
_NAME_LENGTH = 64
"""Of a matrix; a quantifier that may stop anywhere multiplies the steps of a match by as much."""
_MOST_STEPS = 65_536
"""Of one matrix' name in all patterns and layers, in matches that walk the name once: a second of processor at worst. A
repository is a stranger, and what reads its config is the operator of all services."""
_QUANTIFIED_GROUP = re.compile(r"\)[*+?{]")
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
    steps = 0
    for pattern in dict.fromkeys(kept):
        if not pattern.startswith("re:") and _ENCODER.search(pattern):
            continue
        found = None if pattern.startswith("re:") or "*" in pattern else _LAYER.search(pattern)
        if found is None:
            everywhere.append(_matcher(pattern))
            steps += _steps(pattern)
            by_number = by_number or any(letter.isdigit() for letter in pattern) or "\\d" in pattern or "[" in pattern
        elif int(found[1]) < len(layers):
            of_layer[int(found[1])].add(found[2] or "")
    places = len(layers) if by_number else len({id(layer) for layer in layers})
    if steps * places > _MOST_STEPS:
        problem = f"has too many patterns, or too elaborate ones, for {places} layers"
        raise InvalidModel("quantization_config.ignore", problem)
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


def _steps(pattern: str) -> int:
    """Names that a match may walk, at worst. Globs do not go back."""
    quantifiers = len(_QUANTIFIER.findall(pattern)) if pattern.startswith("re:") else 0
    return int(_NAME_LENGTH ** min(max(0, quantifiers - 1), 8))


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
    if pattern.startswith("re:"):
        # The expression is a stranger's: one that can backtrack for minutes is not tried.
        if _steps(pattern) > _MOST_STEPS or _QUANTIFIED_GROUP.search(pattern):
            raise InvalidModel("quantization_config.ignore", f"has a pattern that is too elaborate: {pattern[:60]!r}")
        try:
            expression = re.compile(pattern[3:])
        except re.error as error:
            raise InvalidModel("quantization_config.ignore", f"has a wrong pattern {pattern[:60]!r}: {error}") from None
        return lambda name: expression.match(name) is not None
    if "*" in pattern:
        glob = re.compile(translate(pattern) if pattern.endswith("*") else translate(f"{pattern}*"))
        return lambda name: glob.match(name) is not None
    return lambda name: f".{pattern}." in f".{name}."
