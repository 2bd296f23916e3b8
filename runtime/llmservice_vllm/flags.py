"""vLLM's flags as its own parser resolves them: dashes or underscores, `=`, short, dotted keys, abbreviations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property


@dataclass(frozen=True)
class Flag:
    """A flag with all its spellings; `values` is 0, 1, "?", "+" or "*"."""

    spellings: tuple[str, ...]
    """All that the parser accepts, including `negated` ones and those that help does not show."""
    negated: tuple[str, ...]
    """Spellings that negate it; the first is used for rendering."""
    values: int | str
    kind: str
    choices: tuple[str, ...]

    @property
    def name(self) -> str:
        """The first long spelling."""
        return next(s for s in self.spellings if s.startswith("--"))


@dataclass(frozen=True)
class Match:
    """A token that is a flag, with its full spelling, and the value after `=` if any."""

    flag: Flag
    spelling: str
    value: str | None = None

    @property
    def is_negated(self) -> bool:
        return self.spelling in self.flag.negated


@dataclass(frozen=True)
class Unknown:
    """A token that looks like a flag but is none; the nearest flags first."""

    token: str
    nearest: tuple[str, ...]


@dataclass(frozen=True)
class Ambiguous:
    """An abbreviation of several flags."""

    token: str
    candidates: tuple[str, ...]


Resolution = Match | Unknown | Ambiguous


@dataclass(frozen=True)
class FlagTable:
    version: str
    flags: tuple[Flag, ...]

    @cached_property
    def by_spelling(self) -> dict[str, Flag]:
        """Every full spelling."""
        return {spelling: flag for flag in self.flags for spelling in flag.spellings}

    def resolve(self, token: str) -> Resolution | None:
        """vLLM's interpretation of a token; None: a value, not a flag."""
        if not token.startswith("-") or token == "-" or _NEGATIVE_NUMBER.match(token):
            return None
        written = _split(_normal(token))
        if written.name in self.by_spelling:
            return Match(self.by_spelling[written.name], written.name, written.value)
        candidates = sorted(set(self._candidates(written)), key=lambda match: match.spelling)
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            return Ambiguous(token, tuple(match.spelling for match in candidates))
        return None if " " in token else Unknown(token, self._nearest(written.name))

    def _candidates(self, written: _Written) -> Iterator[Match]:
        """argparse's rules: a prefix of a long spelling, with or without `=`; after one dash the whole token must be
        the prefix, or a letter with its value attached."""
        prefix = written.name if written.name.startswith("--") else written.argparse_token
        for spelling, flag in self.by_spelling.items():
            if not written.name.startswith("--") and spelling == written.name[:2]:
                yield Match(flag, spelling, written.argparse_token[2:].removeprefix("="))
            elif spelling.startswith(prefix):
                yield Match(flag, spelling, written.value)

    def _nearest(self, spelled: str) -> tuple[str, ...]:
        return tuple(get_close_matches(spelled, self.by_spelling, n=3, cutoff=0.6))

    def grouped(self, args: Sequence[str]) -> Iterator[tuple[str, Resolution | None, tuple[str, ...]]]:
        """Each flag as written, its resolution, and the values that the parser would assign; values after `=` are in
        the resolution. A value without a flag is returned with None."""
        index = 0
        while index < len(args):
            argument = args[index]
            resolution = None if argument == "--" else self.resolve(argument)
            index += 1
            room = _room(argument, resolution)
            values: list[str] = []
            while index < len(args) and len(values) < room and self._is_value(args[index]):
                values.append(args[index])
                index += 1
            yield argument, resolution, tuple(values)

    def _is_value(self, token: str) -> bool:
        return token != "--" and self.resolve(token) is None

    def abbreviations(self, name: str) -> tuple[str, ...]:
        """Every abbreviation of a flag, and of its negations, that the parser accepts."""
        spellings = [s for s in self.by_spelling[name].spellings if s.startswith("--")]
        prefixes = (spelling[:end] for spelling in spellings for end in range(3, len(spelling)))
        found = ((prefix, self.resolve(prefix)) for prefix in prefixes)
        return tuple(p for p, match in found if isinstance(match, Match) and match.flag.name == name)


def _room(argument: str, resolution: Resolution | None) -> int:
    """Number of following values that belong to a flag. An unknown flag gets all: one problem is enough."""
    if isinstance(resolution, Unknown | Ambiguous):
        return 0 if "=" in argument else 1 << 16
    if resolution is None or resolution.value is not None:
        return 0
    if "." in argument.partition("=")[0]:
        return 1
    return {0: 0, 1: 1, "?": 1}.get(resolution.flag.values, 1 << 16)


_NEGATIVE_NUMBER = re.compile(r"^-\d+$|^-\d*\.\d+$")


def _normal(token: str) -> str:
    """The token after vLLM's own rewriting, before argparse."""
    if token == "-O":
        return "--optimization-level"
    if token.startswith("-O"):
        return f"--optimization-level={token[2:].removeprefix('=')}"
    if token.startswith("--help="):
        return "--help"
    if not token.startswith("--"):
        return token
    head, equals, value = token.partition("=")
    name, dot, keys = head.partition(".")
    return name.replace("_", "-") + dot + keys + equals + value


@dataclass(frozen=True)
class _Written:
    """A token split into the name before `=` or a dot, the value, and what argparse gets."""

    name: str
    value: str | None
    argparse_token: str


def _split(token: str) -> _Written:
    """`--flag.key value` and `--flag.key=value` become `--flag JSON` for argparse."""
    head, equals, value = token.partition("=")
    name, dot, _ = head.partition(".")
    if dot:
        return _Written(name, value if equals else None, name)
    return _Written(head, value if equals else None, token)
