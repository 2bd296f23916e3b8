"""Reads YAML of others with bounds on nodes, depth and numbers; the only exception is `NoYaml`.

A composer recurses, libyaml's in C, where a text of many brackets ends the process; and some lines of aliases stand for
billions of values. So a pass over the events, which does not recurse, bounds both before anything is built.
How many characters there are at most is the caller's to say, who reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import yaml

MOST_NODES = 400_000
"""Keys and values of a text, with every alias written out: an API server takes objects of 1.5 MiB."""
DEEPEST = 200
LONGEST_NUMBER = 400
"""Characters: those of base 60 take time with the square of their length, and Python writes no long ones."""
_NUMBERS = ("bool", "int", "float", "timestamp")
"""Types whose constructors raise what they come upon (KeyError, IndexError, AttributeError, OverflowError)."""
_BROKEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class NoYaml(ValueError):
    """What is wrong with the text, in a line that may quote it; `line` is where, from 1, if that is known."""

    def __init__(self, why: str, line: int | None = None) -> None:
        super().__init__(why)
        self.line = line


def load(text: str, most: int = MOST_NODES) -> Any:
    """The only document's value, None where there is none; NoYaml where there are several."""
    found = load_all(text, most)
    if len(found) > 1:
        raise NoYaml("it holds several documents")
    return found[0] if found else None


def load_all(text: str, most: int = MOST_NODES) -> list[Any]:
    """The values of all documents."""
    try:
        _check(text, most)
        return list(yaml.load_all(text, _Loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise NoYaml(" ".join(str(error).split()), None if mark is None else mark.line + 1) from None
    except UnicodeError:
        raise NoYaml("it holds half of a surrogate pair") from None


def _check(text: str, most: int) -> None:
    """NoYaml where it is too deep or stands for too much."""
    count, opened, sizes = 0, list[tuple[str | None, int]](), dict[str | None, int]()
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            sizes[anchor] = count - before
            continue
        if isinstance(event, yaml.AliasEvent):
            count += sizes.get(event.anchor, 0)  # the composer reports one that is not known
        elif isinstance(event, yaml.NodeEvent):
            is_open = isinstance(event, yaml.CollectionStartEvent)
            sizes[event.anchor] = most if is_open else 1  # an alias of what is still open stands for it without end
            if is_open:
                opened.append((event.anchor, count))
            count += 1
        if count > most:
            raise NoYaml(f"it has more than {most:,} keys and values, aliases included")
        if len(opened) > DEEPEST:
            raise NoYaml("it is nested too deeply")


def _constructed(kind: str, construct: Callable[[Any, Any], Any], loader: Any, node: Any) -> Any:
    """The value of a scalar; an error of YAML's own, with the line, where it is none."""
    try:
        if len(node.value) <= LONGEST_NUMBER:
            return construct(loader, node)
    except _BROKEN:
        pass
    raise yaml.constructor.ConstructorError(None, None, f"the value is no {kind}", node.start_mark)


_Loader: Any = type("_Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
"""libyaml's takes a tenth of the time, where PyYAML has it."""
for _kind in _NUMBERS:
    _tag = f"tag:yaml.org,2002:{_kind}"
    _Loader.add_constructor(_tag, partial(_constructed, _kind, yaml.SafeLoader.yaml_constructors[_tag]))
