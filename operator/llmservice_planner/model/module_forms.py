"""How a quantized checkpoint stores each matrix: matches its names and patterns with module names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import translate
from typing import Any, NamedTuple

from llmservice_planner.model.architecture import UNQUANTIZED, InvalidModel, Layer, Quantization

# Patterns of a repository for module names: regular expressions and globs, matched by RE2. A repository is not trusted,
# and Python's `re` may take exponential time. RE2 takes time proportional to pattern and name. It has no look-ahead,
# look-behind or back-references; patterns with these are refused.

LONGEST = 1024
"""Characters of a pattern, or of a name in a list of modules."""
MEMORY = 2**20
"""Bytes for the program and states of one pattern, which also limits its compilation to some 5 ms."""
_SPECIAL = re.compile(r"(\*|\?|\[!?\]?[^\]]*\])")
"""Special characters of a glob."""
_GLOB: Mapping[str, str] = {"*": ".*", "?": "."}


class UnreadablePattern(ValueError):
    """RE2 refuses the pattern; the text has the cause."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern. Call it with a name: whether the name starts with a match."""

    compiled: Any
    parts: tuple[str, ...]
    """Texts in every match."""

    def __call__(self, name: str) -> bool:
        return self.is_possible(name) and self.compiled.match(name) is not None

    def is_possible(self, text: str) -> bool:
        """Whether the text contains what a match must contain."""
        return all(part in text for part in self.parts)

    @property
    def size(self) -> int:
        """Instructions of the program."""
        return int(self.compiled.programsize)


def regular_expression(text: str) -> Pattern:
    """Matches at the start of a name, as `re.match` (compressed-tensors)."""
    return Pattern(_compiled(text), _literals(text))


def glob(text: str) -> Pattern:
    """Matches a glob at the start of a name (ModelOpt)."""
    parts = _SPECIAL.split(text)
    compiled = _compiled("(?s)" + "".join(_GLOB.get(part) or _plain(part) for part in parts))
    return Pattern(compiled, tuple(filter(None, parts[::2])))


def _compiled(text: str) -> Any:
    import re2  # only configs with patterns need it: the command line starts without

    if len(text) > LONGEST or not text.isascii():
        raise UnreadablePattern(f"it has more than {LONGEST} characters, or some that no name of a module has")
    options = re2.Options()
    options.max_mem, options.log_errors, options.never_capture = MEMORY, False, True
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise UnreadablePattern(_why(error)) from None


_TOKEN = re.compile(
    r"(?P<one>[A-Za-z0-9_-]|\\[^A-Za-z0-9])(?![*?{])"
    r"|\\[dwsDWS]|\[[A-Za-z0-9_.^-]+\]|[\w.^$*+?-]|\\[^A-Za-z0-9]|\{[0-9,]*\}"
)
"""One literal character; or one that may be any or absent, with its repeats."""


def _literals(text: str) -> tuple[str, ...]:
    """Texts in each match of a regular expression; empty if it has groups, classes or alternatives."""
    found, place = [""], 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            return ()
        if token["one"]:
            found[-1] += token["one"][-1]
        elif found[-1]:
            found.append("")
        place = token.end()
    return tuple(filter(None, found))


def _plain(part: str) -> str:
    r"""A class as the standard library writes it, in `(?s:CLASS)\\Z`; anything else is literal."""
    return translate(part)[4:-3] if _SPECIAL.fullmatch(part) else re.escape(part)


def _why(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


_KEY = "quantization_config.ignore"
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.([0-9]{1,6})(?:\.(.*))?$")
"""A name of one layer, as most in long lists: they are indexed by layer first."""
_ENCODER = re.compile(r"vision|visual|audio|encoder|projector|mm_|mtp")
"""Names outside decoder layers."""
_MOST_MATCHES = 2**15
"""Patterns times layers in which they are searched."""
_MOST_WORK = 2**18
"""Matches of usual patterns, including compilation: about a second of CPU. Large patterns count more."""
_FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
_OTHER_NAMES = {
    "mlp.shared_experts.": ("mlp.shared_expert.",),
    "mlp.experts.": ("mlp.experts.0.",),
    "mlp.": ("block_sparse_moe.", "feed_forward.", "ffn."),
    "self_attn.": ("attention.", "attn."),
}
"""Other families' names of the same modules; files that name each expert are searched for the first."""


def with_forms(layers: tuple[Layer, ...], quantization: Quantization) -> tuple[Layer, ...]:
    """The layers with the form of each matrix, from the first matching rule.

    Modules that stay in 16 bit precede the rules. Equal layers stay one object.
    """
    rules = _Rules(layers)
    for pattern, form in (*((one, UNQUANTIZED) for one in dict.fromkeys(quantization.kept)), *quantization.rules):
        if pattern.startswith("re:") or not _ENCODER.search(pattern):
            rules.add(pattern, form)
    if not rules.forms and not quantization.unmatched:
        return layers
    forms = (*rules.forms, quantization.unmatched)
    made: dict[tuple[int, tuple[int, ...]], Layer] = {}
    hits: dict[tuple[int, int], tuple[int, ...]] = {}
    result = []
    for index, layer in enumerate(layers):
        # Most patterns match all layers alike, and are tried on the first.
        place = (id(layer), index if rules.by_number else 0)
        if place not in hits:
            hits[place] = tuple(rules.first(linear.module, place[1]) for linear in layer.linears)
        names = rules.of_layer.get(index, {})
        found = tuple(
            forms[min(hit, _named(linear.module, names), key=lambda rule: rule % len(forms))]
            for linear, hit in zip(layer.linears, hits[place], strict=True)
        )
        key = (id(layer), found)
        if key not in made:
            linears = zip(layer.linears, found, strict=True)
            changed = tuple(one if one.form == form else replace(one, form=form) for one, form in linears)
            made[key] = layer if changed == layer.linears else replace(layer, linears=changed)
        result.append(made[key])
    return tuple(result)


class _Matcher(NamedTuple):
    is_match: Callable[[str], bool]
    """Takes a name."""
    is_possible: Callable[[str], bool]
    """Whether a text contains what any match contains."""


class _Rules:
    """Rules in order: those of one layer by its number, the others as matchers."""

    def __init__(self, layers: tuple[Layer, ...]) -> None:
        self.forms: list[int] = []
        self.everywhere: list[tuple[int, _Matcher]] = []
        self.of_layer: dict[int, dict[str, int]] = defaultdict(dict)
        self.by_number = False
        self._layers, self._distinct = len(layers), len({id(layer) for layer in layers})
        self._work = 0

    def add(self, pattern: str, form: int) -> None:
        if len(pattern) > LONGEST:
            raise InvalidModel(_KEY, f"has a name of more than {LONGEST} characters")
        number = len(self.forms)
        self.forms.append(form)
        found = None if pattern.startswith("re:") or "*" in pattern else _LAYER.search(pattern)
        if found is None:
            self.everywhere.append((number, self._matcher(pattern)))
            self.by_number |= any(letter.isdigit() for letter in pattern) or "\\d" in pattern or "[" in pattern
            places = self._layers if self.by_number else self._distinct
            if len(self.everywhere) * places > _MOST_MATCHES:
                raise InvalidModel(_KEY, f"has more patterns than are tried on {places} layers")
        elif int(found[1]) < self._layers:
            self.of_layer[int(found[1])].setdefault(found[2] or "", number)

    def _matcher(self, pattern: str) -> _Matcher:
        """`re:` is a regular expression (compressed-tensors), `*` a glob (ModelOpt); else a part of the name."""
        try:
            if pattern.startswith("re:"):
                made = regular_expression(pattern[3:])
            elif "*" in pattern:
                made = glob(pattern)
            else:
                return _Matcher(lambda name: f".{pattern}." in f".{name}.", lambda text: pattern in text)
        except UnreadablePattern as error:
            raise InvalidModel(_KEY, f"has a pattern that is not read, {pattern[:60]!a}: {error}") from None
        self._spend(20 + made.size // 6)
        cost = 1 + made.size // 1000

        def is_match(name: str) -> bool:
            if not made.is_possible(name):
                return False
            self._spend(cost)
            return made(name)

        return _Matcher(is_match, made.is_possible)

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > _MOST_WORK:
            raise InvalidModel(_KEY, f"has more patterns than can be tried on {self._layers} layers")

    def first(self, module: str, index: int) -> int:
        """Index of the first rule with a matching pattern, or -1."""
        if not self.everywhere:
            return -1
        names = [f"model.layers.{index}.{spelling}" for spelling in _spellings(module)]
        text = "\n".join(names)
        found = (number for number, one in self.everywhere if one.is_possible(text) and any(map(one.is_match, names)))
        return next(found, -1)


def _named(module: str, names: Mapping[str, int]) -> int:
    """Index of the first rule that names the module or a parent, or -1."""
    if not names:
        return -1
    around = ("", *(".".join(parts[:size]) for parts in _parts(module) for size in range(1, len(parts) + 1)))
    return min((names[name] for name in around if name in names), default=-1)


def _parts(module: str) -> Iterator[list[str]]:
    return (spelling.split(".") for spelling in _spellings(module))


def _spellings(module: str) -> tuple[str, ...]:
    stem, _, last = module.rpartition(".")
    found = [module] + ([f"{stem}.{_FUSED[last]}"] if last in _FUSED else [])
    for ours, others in _OTHER_NAMES.items():
        if module.startswith(ours):
            found += [other + name.removeprefix(ours) for name in tuple(found) for other in others]
    return tuple(found)
