"""What pods, Jobs and users may say: any JSON at all, and valid documents of which some parts are anything else."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from hypothesis import strategies as st

NUMBERS = ["1e400", "-1e400", "1e308", "5e-324", "NaN", "Infinity", "-Infinity", "9" * 30, "9" * 400, "9" * 5000]
NUMBERS += ["9007199254740993", "9223372036854775807", "9223372036854775808", "18446744073709551616", "-1", "-0.0", "0"]
TEXTS = ['"\\ud800"', '"\\udc00a"', '"a\\ud83d"', '"\\u0000"', '"\\u001b[2J"', '"' + "x" * 5000 + '"', '""', '"1"']
TEXTS += ['"many"', '"2026-01-01"', '"2026-01-01T00:00:00Z"', '"9999999999-01-01T00:00:00Z"', '"True"', '"{}"']
DEEP = ["[" * 1500 + "]" * 1500, '{"a":' * 400 + "1" + "}" * 400, "[" * 4096, "[[" * 20 + "]]" * 20]
OTHERS = [
    "null",
    "true",
    "false",
    "{}",
    "[]",
    "[null]",
    '[{"a":1}]',
    '{"a":{"b":[1,2]}}',
    "[" + "1," * 500 + "1]",
    "1.5",
]
LEAVES = (*NUMBERS, *TEXTS, *DEEP, *OTHERS)
"""As text: some of it no JSON writer writes."""

PLACE = "@@{}@@"

seeds = st.integers(0, 2**63 - 1)
"""Of what is changed in a document: one draw an example, since each draw costs more than what is tested."""


def json_value(random: Random, leaves: Sequence[Any] = (None,), names: Sequence[str] = (), depth: int = 3) -> Any:
    """Any JSON, and what Python's reader makes of more than that; with these leaves and names of fields in it."""
    kind = random.randrange(10 if depth else 7)
    if kind < 7:
        plain = (None, random.random() < 0.5, random.randint(-(2**70), 2**70), random.randint(-3, 300))
        return (*plain, random.choice(_FLOATS), _text(random), random.choice(leaves))[kind]
    length = random.randrange(5)
    if kind == 7:
        return [json_value(random, leaves, names, depth - 1) for _ in range(length)]
    keys = (random.choice(names) if names and random.random() < 0.8 else _text(random) for _ in range(length))
    return {key: json_value(random, leaves, names, depth - 1) for key in keys}


def _text(random: Random) -> str:
    alphabet = random.choice(_ALPHABETS)
    return "".join(random.choice(alphabet) for _ in range(random.randrange(30)))


_FLOATS = (0.0, -0.0, 1.5, 1e308, 5e-324, float("inf"), float("-inf"), float("nan"), 2.0**63)
_ALPHABETS = ('{}[]",:0123456789eE+-.', "abc xyz_./-", '\\u"\n\t\x00\x1b', "\u00e9\u2028\ufeff\u202e\U0001f600\uffff")


def _anything(seed: int) -> str:
    random = Random(seed)
    kind = random.randrange(3)
    return random.choice(LEAVES) if kind == 0 else _text(random) if kind == 1 else json.dumps(json_value(random))


anything = seeds.map(_anything)
"""Texts of which hardly any is a document."""


def texts(document: Any) -> st.SearchStrategy[str]:
    """Texts near a valid document: parts of it replaced, taken away or doubled, and what is near nothing."""
    paths, kept = tuple(_paths(document)), pickle.dumps(document)
    return seeds.map(lambda seed: _mutated(kept, paths, Random(seed)) if seed % 4 else _anything(seed))


def objects(document: Any) -> st.SearchStrategy[Any]:
    """Values near a valid one, for what arrives parsed: lone surrogates, infinities and depth are in them too."""
    paths, kept = tuple(_paths(document)), pickle.dumps(document)

    def changed(seed: int) -> Any:
        found, random = pickle.loads(kept), Random(seed)
        for _ in range(random.randint(1, 3)):
            _replace(found, random.choice(paths), random.choice(PARSED))
        return found

    return seeds.map(changed)


GONE = object()


def _deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


PARSED: tuple[Any, ...] = (
    *(GONE, None, True, False, 0, -1, 1, 1.5, 2**53 + 1, 2**63 - 1, 2**64, 10**400, float("inf"), float("-inf")),
    *(float("nan"), 5e-324, "", "x", "1", "a\ud800", "\x00\x1b[2J", "x" * 50_000, "2026-01-01", "{", "[" * 4096),
    *("2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1e9999999", "True", {}, [], [None], [[]], [{}], {"a": 1}),
    *({"": None}, {"type": "Ready"}, _deep(40), _deep(400), ["x"] * 3000, {"name": "x"}, '{"a":1e400}', '{"a":NaN}'),
)


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from _paths(item, (*at, key))


def _replace(document: Any, path: tuple[Any, ...], value: Any) -> None:
    """In place; a path that an earlier change took away is left alone."""
    if not path:
        return
    for step in path[:-1]:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return
    try:
        if value is GONE:
            del document[path[-1]]
        else:
            document[path[-1]] = copy.deepcopy(value) if isinstance(value, dict | list) and value else value
    except (KeyError, IndexError, TypeError):
        return


def _mutated(kept: bytes, paths: Sequence[tuple[Any, ...]], random: Random) -> str:
    found, leaves = pickle.loads(kept), []
    for number in range(random.randint(1, 3)):
        leaf = random.choice((None, *LEAVES))
        leaves.append(leaf or "")
        _replace(found, random.choice(paths), GONE if leaf is None else PLACE.format(number))
    text = json.dumps(found, ensure_ascii=random.random() < 0.5)
    for number, leaf in enumerate(leaves):
        text = text.replace(json.dumps(PLACE.format(number)), leaf)
    return text[: random.randint(0, len(text))] if random.random() < 0.1 else text
