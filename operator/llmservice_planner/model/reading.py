"""Reads a model's configuration into a value that can be passed from the reading process to the planner.

`read` takes the text of a config.json and returns an answer: an Architecture, or why there is none. All configurations
from outside pass through it. The operator runs it in a separate process (`reader_process`), which is killed if it takes
too long. So an answer is untrusted data: compressed JSON of bounded size with bounded numbers. Nothing in it is
executed or unpickled.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from llmservice_planner.model import config_json
from llmservice_planner.model.architecture import Architecture, Incomplete, InvalidModel, UnsupportedModel
from llmservice_planner.model.config_keys import MOST_LAYERS

if TYPE_CHECKING:
    from pydantic import TypeAdapter

logger = logging.getLogger(__name__)

FAILURES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions that unexpected facts of a model may raise in the planner; they must not prevent the service from
starting."""
LARGEST_ANSWER = 16 * 1024
"""Bytes of an answer, of which a thousand are cached."""
_LARGEST_TEXT = 512 * 1024
_MOST_DIGITS = 24
"""Of a number of an architecture."""


class Stopped(StrEnum):
    """Why a configuration was not read completely."""

    CPU = "cpu"
    MEMORY = "memory"
    TIME = "time"
    DIED = "died"


class ReadingStopped(InvalidModel):
    """The read was stopped; the model is unknown."""

    def __init__(self, why: Stopped) -> None:
        super().__init__("config.json", "was not read to its end")
        self.why = why


class ReadingFailed(InvalidModel):
    """The planner failed, and not the model."""

    def __init__(self, what: str) -> None:
        super().__init__("config.json", f"was not read: {what}")
        self.what = what


@dataclass(frozen=True, slots=True)
class ConfigReading:
    """A configuration as input of a decision."""

    document: str
    """The configuration as JSON text."""
    answer: bytes | None
    """The answer of `read`; None: it is still being read."""


def read(document: str) -> bytes:
    """The answer for the text of a config.json. Does not raise for any text."""
    try:
        made = config_json.read(_parsed(document))
    except Incomplete as incomplete:
        return _packed({"incomplete": [name[:256] for name in incomplete.missing[:64]]})
    except InvalidModel as invalid:
        return _packed({"invalid": [invalid.key[:256], invalid.problem[:512]]})
    except UnsupportedModel as unplanned:
        return _packed({"unplanned": [unplanned.key, unplanned.value[:256]]})
    except FAILURES as error:
        logger.error("the planner failed: reading the model's configuration", exc_info=error)
        return _packed({"failed": f"{type(error).__name__}: {error}"[:200]})
    answer = _packed({"architecture": _written(made)})
    if len(answer) > LARGEST_ANSWER:
        return _packed({"invalid": ["config.json", "describes more layers that differ than can be planned with"]})
    return answer


def stopped(why: Stopped) -> bytes:
    """The answer for a configuration that was not read completely."""
    return _packed({"stopped": why})


def architecture(answer: bytes) -> Architecture | Incomplete | InvalidModel | UnsupportedModel:
    """The content of an answer. ValueError for invalid data, which the reader process does not write."""
    found = _unpacked(answer)
    match found:
        case {"architecture": Mapping() as written}:
            return _built(written)
        case {"incomplete": list() as missing}:
            return Incomplete(*map(str, missing))
        case {"invalid": [str() as key, str() as problem]}:
            return InvalidModel(key, problem)
        case {"unplanned": [str() as key, str() as value]}:
            return UnsupportedModel(key, value)
        case {"failed": str() as what}:
            return ReadingFailed(what)
        case {"stopped": str() as why}:
            return ReadingStopped(Stopped(why))
    raise ValueError("this is no answer of the reader")


def _parsed(document: str) -> Any:
    try:
        return json.loads(document)
    except RecursionError:
        raise InvalidModel("config.json", "is nested too deeply") from None
    except ValueError as error:
        raise InvalidModel("config.json", f"is no JSON: {error}") from None


def _written(made: Architecture) -> dict[str, Any]:
    """Distinct layers, and their order. The layers have the forms of their modules already."""
    distinct = {id(layer): number for number, (layer, _) in enumerate(made.distinct_layers)}
    order = [[number, len(list(run))] for number, run in groupby(distinct[id(layer)] for layer in made.layers)]
    quantization = None if made.quantization is None else replace(made.quantization, kept=(), rules=())
    plain = replace(made, layers=tuple(layer for layer, _ in made.distinct_layers), quantization=quantization)
    written: dict[str, Any] = _plain(plain)
    return written | {"order": order}


def _plain(value: Any) -> Any:
    """As JSON, without default values."""
    if is_dataclass(value):
        named = ((one, getattr(value, one.name)) for one in fields(value) if one.init)
        return {one.name: _plain(item) for one, item in named if item != one.default}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _built(written: Mapping[str, Any]) -> Architecture:
    values = dict(written)
    order = values.pop("order", None)
    made = _adapter().validate_python(values)
    if not isinstance(order, list) or not all(_is_run(run, len(made.layers)) for run in order):
        raise ValueError("the order of the layers is none")
    if sum(count for _, count in order) > MOST_LAYERS or len(made.layers) > config_json.MOST_DISTINCT:
        raise ValueError("there are too many layers")
    layers = tuple(made.layers[number] for number, count in order for _ in range(count))
    return config_json.bounded(replace(made, layers=layers))


def _is_run(run: object, layers: int) -> bool:
    match run:
        case [int() as number, int() as count]:
            return 0 <= number < layers and 0 < count <= MOST_LAYERS
    return False


@cache
def _adapter() -> TypeAdapter[Architecture]:
    from pydantic import TypeAdapter  # not in the reading process: it only writes

    return TypeAdapter(Architecture)


def _packed(answer: Mapping[str, Any]) -> bytes:
    return zlib.compress(json.dumps(answer, separators=(",", ":")).encode(), 6)


def _unpacked(answer: bytes) -> Any:
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(answer, _LARGEST_TEXT).decode()
        if len(answer) > LARGEST_ANSWER or not unpacker.eof:
            raise ValueError("the answer is larger than answers are")
        return json.loads(text, parse_int=_number, parse_constant=_number)
    except (RecursionError, zlib.error) as error:
        raise ValueError("this is no answer of the reader") from error


def _number(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError("a number is larger than an architecture's are")
    return int(text)
