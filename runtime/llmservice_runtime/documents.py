"""JSON documents that are dataclasses: written and read by the types of their fields.

A field is the member of its name in camelCase. Its type says what is read: text, a number from 0 to LARGEST, a flag, a
word of an enumeration, another document, or a tuple of texts or documents. A member may be absent or null where its
field has a default, and None is not written. `Annotated[type, Field(...)]` says what is otherwise. Members of a later
version are ignored.

Standard library only, Python 3.10 and later, like all of the runtime.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from llmservice_runtime.bounded_json import LARGEST, Reader, Refused

D = TypeVar("D", bound="Document")


@dataclasses.dataclass(frozen=True)
class Field:
    """How a member is written and read, where that is not what its field's name and type say."""

    name: str = ""
    least: float = 0
    most: float = LARGEST
    longest: int = 1024
    """Characters of a text: a longer one is refused."""
    is_prose: bool = False
    """A longer text is cut instead."""
    items: int = 0
    """The most of a tuple."""
    is_required: bool = False
    """When it is read, although its field has a default."""
    forgives: type[Refused] | None = None
    """What is refused in this way is read as `instead`."""
    instead: Any = None
    unwritten: tuple[object, ...] = (None,)
    """Values that are not written."""
    written: Callable[[Any], Any] | None = None
    """What is written of a value, where that is not the value."""


class Document:
    """Base of dataclasses that are documents."""

    def to_document(self) -> dict[str, Any]:
        """As JSON."""
        document: dict[str, Any] = {}
        for member in self._members():
            value = getattr(self, member.attribute)
            if value not in member.field.unwritten:
                document[member.name] = value if member.write is None else member.write(value)
        return document

    @classmethod
    def from_document(cls: type[D], document: object, what: str = "it") -> D:
        """The inverse, of parsed JSON or its Reader. Refused where it is invalid; `what` is its name in messages."""
        given = document if isinstance(document, Reader) else Reader(document, what)
        values: dict[str, Any] = {}
        for member in cls._members():
            if member.is_required or given.has(member.name):
                try:
                    values[member.attribute] = member.read(given, member.name)
                except Refused as refused:
                    if member.field.forgives is None or not isinstance(refused, member.field.forgives):
                        raise
                    values[member.attribute] = member.field.instead
        return cls(**values)

    @classmethod
    def _members(cls) -> tuple[_Member, ...]:
        return _members(cls)  # type: ignore[arg-type]  # mypy takes the hash of its instances for the class's


def to_line(document: Mapping[str, Any]) -> str:
    """One line of JSON."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


class _Member(NamedTuple):
    attribute: str
    name: str
    field: Field
    is_required: bool
    read: Callable[[Reader, str], Any]
    write: Callable[[Any], Any] | None


@cache
def _members(kind: type[Any]) -> tuple[_Member, ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple(_member(each, hints[each.name]) for each in dataclasses.fields(kind))


def _member(of: dataclasses.Field[Any], hint: Any) -> _Member:
    field = Field()
    if get_origin(hint) is Annotated:
        hint, field = get_args(hint)
    if type(None) in get_args(hint):
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    first, *others = of.name.split("_")
    is_required = of.default is of.default_factory is dataclasses.MISSING
    name = field.name or first + "".join(map(str.capitalize, others))
    write = field.written or (None if hint in (str, bool, int, float) else _plain)
    return _Member(of.name, name, field, field.is_required or is_required, _reader(hint, field), write)


def _reader(hint: Any, field: Field) -> Callable[[Reader, str], Any]:
    """What reads a member of this type."""
    if hint is str:
        return partial(Reader.text if field.is_prose else Reader.word, limit=field.longest)
    if hint is bool:
        return Reader.flag
    if hint is int:
        return partial(Reader.integer, least=int(field.least), most=int(field.most))
    if hint is float:
        return partial(Reader.number, least=field.least, most=field.most)
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        if item is str:
            return partial(Reader.texts if field.is_prose else Reader.words, limit=field.items, longest=field.longest)
        return lambda given, name: tuple(
            item.from_document(each, given.path(name)) for each in given.items(name, field.items)
        )
    if issubclass(hint, Document):
        return lambda given, name: hint.from_document(given.within(name))
    return partial(Reader.one_of, kind=hint)


def _plain(value: Any) -> Any:
    """The value as JSON has it: of an enumeration, a document or a tuple of texts or documents."""
    if isinstance(value, Document):
        return value.to_document()
    if isinstance(value, Enum):
        return str(value)
    return [each.to_document() if isinstance(each, Document) else each for each in value]
