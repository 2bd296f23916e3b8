"""`problems(manifest)`: everything for which an API server with this version's CRD would refuse an LLMService."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from functools import lru_cache
from typing import Any

from llmservice_api.crd import schema
from llmservice_api.errors import Problem

from . import structural
from .cel import Failed, evaluate

Json = Mapping[str, Any]
Schema = Mapping[str, Any]

_OLD = "oldSelf"
"""A rule with it compares with the stored value, and is skipped where there is none."""


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
    return (*found, *_rules(body, whole, "", live))


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
        return evaluate(rule, {"self": value, _OLD: old}) is True
    except Failed:
        return False


def _message(rule: Json, value: Any) -> str:
    expression = rule.get("messageExpression")
    if expression is not None:
        try:
            return str(evaluate(expression, {"self": value}))
        except Failed:
            pass
    return str(rule["message"])


def _as_json(value: Any) -> Any:
    """YAML as kubectl sends it: names are text, 2.0 is 2, and a date is its text."""
    if isinstance(value, Mapping):
        return {_key(key): _as_json(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_as_json(one) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value.isoformat() if isinstance(value, date) else value


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)
