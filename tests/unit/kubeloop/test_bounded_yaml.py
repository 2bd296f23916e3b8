"""YAML of others is a value or `NoYaml`, soon, and never another exception or the end of the process."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kubeloop.bounded_yaml import DEEPEST, MOST_NODES, NoYaml, load, load_all

READ: dict[str, tuple[str, Any]] = {
    "nothing": ("", None),
    "a mapping": ("a: {b: [1, 2.5, yes, 2001-01-02]}", yaml.safe_load("a: {b: [1, 2.5, yes, 2001-01-02]}")),
    "an alias": ("a: &a [x]\nb: *a", {"a": ["x"], "b": ["x"]}),
    "a merge": ("a: &a {x: 1}\nb: {<<: *a, y: 2}", {"a": {"x": 1}, "b": {"x": 1, "y": 2}}),
    "an anchor anew": ("- &a [x]\n- &b [*a, *a]\n- *b", [["x"], [["x"], ["x"]], [["x"], ["x"]]]),
    "an explicit type": ("!!int '5'", 5),
    "what other tools write of base 60": ("1:30", 90),
}


@pytest.mark.parametrize(("text", "value"), READ.values(), ids=READ)
def test_what_is_read(text: str, value: object) -> None:
    assert load(text) == value


ALIASES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10))
REFUSED: dict[str, tuple[str, str, int | None]] = {
    "no YAML": ("a:\n  - b\n c: [", "while parsing a block mapping", 3),
    "several documents": ("a: 1\n---\nb: 2", "several documents", None),
    "brackets in a file of 50 kB": ("kind: X\nx: " + "[" * 25_000 + "]" * 25_000, "nested too deeply", None),
    "one bracket too many": ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nested too deeply", None),
    "lists in lists": ("- " * 25_000, "nested too deeply", None),
    "aliases that stand for a billion": (ALIASES, "has more than 400,000 keys and values", None),
    "merges that stand for a billion": (MERGES, "has more than 400,000 keys and values", None),
    "an alias of what it stands in": ("&a [*a]", "has more than", None),
    "a merge of itself": ("&a {<<: *a}", "has more than", None),
    "an alias of nothing": ("[*a]", "undefined alias", 1),
    "many values": ("[" + ",".join("x" * MOST_NODES) + "]", "has more than", None),
    "many documents": ("---\n" * MOST_NODES + "---\n", "has more than", None),
    "a tag of a program": ("!!python/object:os.system x", "could not determine a constructor", 1),
    "no bool": ("a: 1\nfoo: !!bool foo", "the value is no bool", 2),
    "an empty bool": ('!!bool ""', "the value is no bool", 1),
    "an empty int": ('!!int ""', "the value is no int", 1),
    "a word as int": ("!!int x", "the value is no int", 1),
    "a list as int": ("!!int [1]", "expected a scalar node", 1),
    "an int of 5,000 digits": ("9" * 5_000, "the value is no int", 1),
    "an int of 5,000 digits of base 16": ("0x" + "f" * 5_000, "the value is no int", 1),
    "an int of base 60": ("1" + ":00" * 250, "the value is no int", 1),
    "an empty float": ('!!float ""', "the value is no float", 1),
    "a float of base 60": ("1" + ":00" * 250 + ".5", "the value is no float", 1),
    "a short float of base 60": ("1" + ":0" * 180 + ".5", "the value is no float", 1),
    "no timestamp": ("!!timestamp foo", "the value is no timestamp", 1),
    "a date of month 13": ("2001-13-45", "the value is no timestamp", 1),
    "half of a surrogate pair": ("a: \ud800", "surrogate|xd800", None),
    "a control character": ("a: \x00", "characters are not allowed", None),
    "a list as a key": ("? [a]\n: 1", "unhashable key", 1),
}


@pytest.mark.parametrize(("text", "why", "line"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(text: str, why: str, line: int | None) -> None:
    with pytest.raises(NoYaml, match=why) as refused:
        load(text)
    assert (refused.value.line, "\n" in str(refused.value)) == (line, False)


def test_the_deepest_and_the_most_are_read() -> None:
    assert str(load("[" * DEEPEST + "]" * DEEPEST)) == "[" * DEEPEST + "]" * DEEPEST
    assert len(load("[" + ",".join("x" * 99) + "]", 100)) == 99
    assert load_all("a: 1\n---\n---\nb: 2") == [{"a": 1}, None, {"b": 2}]


SIGNS = ("&a ", "*a", "<<: ", "? ", ": ", "- ", "\n", "  ", "[", "]", "{", "}", ", ", "---\n", "=", "'", '"', "|", ".")
TAGS = tuple(
    f"!!{tag} " for tag in ("binary", "bool", "float", "int", "map", "omap", "pairs", "set", "str", "timestamp")
)
SCALARS = ("0x", "0b", "1", ":0", "-", "_", "e9", "2001-12-14", "t21:59:43.10", "-99:99", "yes", "a", "~", "\ud800")


@given(st.lists(st.sampled_from([*SIGNS, *TAGS, *SCALARS]), max_size=30).map("".join) | st.text(max_size=200))
def test_any_text_is_a_value_or_refused(text: str) -> None:
    with suppress(NoYaml):
        load_all(text)
