"""`problems(manifest)`: everything for which an API server with this version's CRD would refuse an LLMService.

The CRD's rules are evaluated by cel-expr-python, which is Google's CEL for C++. Kubernetes' own functions are added
here, as far as the rules use them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date
from functools import lru_cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext.ext_strings import ExtStrings
from llmservice_api.crd import schema
from llmservice_api.errors import Problem
from llmservice_planner.quantity import amount

from . import structural

Json = Mapping[str, Any]
Schema = Mapping[str, Any]

_OLD = "oldSelf"
"""A rule with it compares with the stored value, and is skipped where there is none."""
_HALF = re.compile("[\ud800-\udfff]")
"""Of a surrogate pair: YAML may have one, UTF-8 does not."""


def problems(manifest: Json, live: Json | None = None) -> tuple[Problem, ...]:
    """All of them, each with its field. As in the server no rule is evaluated beside a wrong type and its like.

    `live` is the stored object that the manifest is to change: with it the rules about changes are evaluated, too.
    """
    body, whole, named = stored(manifest), _schema(), _as_json(manifest.get("metadata"))
    wrong = [*structural.problems(named)]
    findings = [*structural.findings(body, whole, "")]
    found = [*wrong, *(finding.problem for finding in findings)]
    if wrong or any(finding.is_blocking for finding in findings):
        return tuple(found)
    body["metadata"] = {"name": named["name"]}
    return (*found, *_rules(_readable(body), whole, "", _readable(live)))


def stored(manifest: Json) -> dict[str, Any]:
    """What an API server stores of a manifest, without its metadata: JSON, with the CRD's defaults and no status."""
    sent = {name: _as_json(manifest[name]) for name in manifest if name not in ("metadata", "status")}
    body: dict[str, Any] = structural.as_stored(sent, _schema())
    return body


@lru_cache(maxsize=1)
def _schema() -> Schema:
    return schema()


def _rules(value: Any, part: Schema, path: str, old: Any = None) -> Iterator[Problem]:
    """The rules of a value and of all below it; `old` is the stored value of the same field."""
    for rule in part.get("x-kubernetes-validations", ()):
        if (_OLD not in rule["rule"] or old is not None) and not _holds(rule["rule"], value, old):
            yield Problem(f"{path}{rule.get('fieldPath', '')}".lstrip("."), f"{_message(rule, value)}.")
    if isinstance(value, Mapping):
        known, beside = part.get("properties") or {}, part.get("additionalProperties")
        for name, one in value.items():
            below = known.get(name, beside)
            if below is not None:
                before = old.get(name) if isinstance(old, Mapping) else None
                yield from _rules(one, below, f"{path}.{name}".lstrip("."), before)
    elif isinstance(value, list) and "items" in part:
        for index, one in enumerate(value):
            yield from _rules(one, part["items"], f"{path}[{index}]")


def _holds(rule: str, value: Any, old: Any) -> bool:
    """A rule that cannot be evaluated refuses, too."""
    try:
        return evaluate(rule, value, old) is True
    except Failed:
        return False


def _message(rule: Json, value: Any) -> str:
    expression = rule.get("messageExpression")
    if expression is not None:
        try:
            return str(evaluate(expression, value))
        except Failed:
            pass
    return str(rule["message"])


class Failed(Exception):
    """An expression without a value here: a field that is not there, types that do not go together."""


def evaluate(text: str, value: Any, old: Any = None) -> Any:
    """The value of a CEL expression in which `self` is `value` and `oldSelf` is `old`, both JSON; Failed where it has
    none. RuntimeError for a text that is no CEL, or that uses a function which is not added here."""
    result = _compiled(text).eval(data={"self": value, _OLD: old})
    if result.type() == cel.Type.ERROR:
        raise Failed(result.value())
    return result.plain_value()


@lru_cache(maxsize=1024)
def _compiled(text: str) -> cel.Expression:
    return _environment().compile(text)


@lru_cache(maxsize=1)
def _environment() -> cel.Env:
    """A quantity is its text: the rules do no more with one than compare it."""
    text, number, numbers = cel.Type.STRING, cel.Type.INT, cel.Type.List(cel.Type.DYN)
    kubernetes = cel.CelExtension(
        "kubernetes",
        [
            cel.FunctionDecl("quantity", [cel.Overload("string_to_quantity", text, [text], False, _quantity)]),
            cel.FunctionDecl("compareTo", [cel.Overload("quantity_compare_to", number, [text, text], True, _compare)]),
            cel.FunctionDecl("sum", [cel.Overload("list_sum", number, [numbers], True, sum)]),
        ],
    )
    variables = {"self": cel.Type.DYN, _OLD: cel.Type.DYN}
    return cel.NewEnv(variables=variables, extensions=[ExtStrings(), kubernetes])


def _quantity(text: str) -> str:
    amount(text)
    return text


def _compare(one: str, other: str) -> int:
    return int(amount(one).compare(amount(other)))


def _readable(value: Any) -> Any:
    """The value as cel-expr-python reads it whole: a text ends for it at NUL, and an integer has 64 bits. No rule
    distinguishes what is replaced here."""
    if isinstance(value, Mapping):
        return {_readable(key): _readable(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_readable(one) for one in value]
    if isinstance(value, int) and abs(value) > structural.MOST_INT64:
        return structural.MOST_INT64 if value > 0 else -structural.MOST_INT64
    return value.replace("\0", "\1") if isinstance(value, str) else value


def _as_json(value: Any) -> Any:
    """YAML as kubectl sends it: names are text, 2.0 is 2, a date is its text, half of a surrogate pair is U+FFFD."""
    if isinstance(value, Mapping):
        return {_key(key): _as_json(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_as_json(one) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    return value.isoformat() if isinstance(value, date) else value


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else _HALF.sub("\ufffd", str(key))
