"""A CEL rule across fields, evaluated by the API server."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rule:
    """CEL that must be true; the message has the problem and the remedy. `field` is relative to the rule's path."""

    rule: str
    message: str
    field: str | None = None
    message_expression: str | None = None

    def to_object(self) -> dict[str, Any]:
        """As an item of x-kubernetes-validations."""
        item = {"rule": self.rule, "message": self.message, "reason": "FieldValueInvalid"}
        if self.field is not None:
            item["fieldPath"] = self.field
        if self.message_expression is not None:
            item["messageExpression"] = self.message_expression
        return item


def cel_list(values: Iterable[str]) -> str:
    return "[" + ", ".join(cel_string(value) for value in values) + "]"


def cel_string(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
