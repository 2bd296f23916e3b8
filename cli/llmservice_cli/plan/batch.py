"""`--batch`: many plans at once, a line of JSON in and a line out, in the same order and as they are made."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TextIO

from llmservice_cli.errors import BadInput, ExitCode, Wrong

from . import models, values
from .answers import answer
from .document import document
from .models import Model, NotReached
from .options import BY_ALIAS, OPTIONS, Reading
from .questions import Question, device, from_values
from .values import Refused, shown

Json = dict[str, Any]

_OTHERS = ("id", "gpu", "config", "model", "num_gpus")
_KNOWN = (*OPTIONS, *BY_ALIAS, *_OTHERS)


def batch(place: str, out: TextIO, *, explain: bool = False) -> ExitCode:
    """Plan every line of a file (`-`: stdin). A bad line has its error in the line out, and the exit code is 2."""
    code = ExitCode.DONE
    with _lines(place) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            found, is_good = _line(number, line, explain=explain)
            code = code if is_good else ExitCode.BAD_INPUT
            print(json.dumps(found, ensure_ascii=False), file=out, flush=True)
    return code


def planned(case: Mapping[str, Any], *, explain: bool = False) -> Json:
    """The plan of one case, as a document; BadInput names every key that is wrong."""
    return document(answer(question(case)), explain=explain)


def question(case: Mapping[str, Any]) -> Question:
    """What one case asks; BadInput names every key that is wrong."""
    reading = Reading()
    named = {BY_ALIAS.get(name, name): value for name, value in case.items() if value is not None}
    for name, option in OPTIONS.items():
        reading.take(name, _label(name, case), option.read, named.get(name))
    _unknown_keys(case, reading)
    _from_num_gpus(named, reading)
    reading.take("gpu_name", "gpu", values.text, named.get("gpu"))
    name, memory = reading.found.pop("gpu_name", None), reading.found.get("gpu_memory_gib")
    reading.take("device", "gpu", lambda asked: device(asked, memory), name)
    model = _model(named, reading)
    if reading.wrongs:
        raise BadInput(reading.wrongs)
    gpu = reading.found.pop("device", None) or device(None, memory)
    return from_values(reading.found, model, () if gpu is None else (gpu,), lambda name: _label(name, case))


def _line(number: int, line: str, *, explain: bool) -> tuple[Json, bool]:
    """What one line comes to, and whether it was a good one."""
    try:
        case = json.loads(line)
    except (ValueError, RecursionError) as error:
        wrong = Wrong(f"line {number}", f"it is no JSON: {error}.", "Write one object a line.")
        return _error(None, [wrong]), False
    if not isinstance(case, dict):
        wrong = Wrong(f"line {number}", f"{shown(case)} is no object.", 'Write one such as {"id": 1, "gpu": "L4"}.')
        return _error(None, [wrong]), False
    try:
        return {"id": case.get("id")} | planned(case, explain=explain), True
    except BadInput as bad:
        return _error(case.get("id"), bad.wrongs), False
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as bug:
        # A mistake of ours: the lines after this one are worth their plans all the same.
        why = f"the planner failed: {type(bug).__name__}: {bug}."
        return _error(case.get("id"), [Wrong(f"line {number}", why, "Report it with this line.")]), False


def _error(identity: object, wrongs: list[Wrong] | tuple[Wrong, ...]) -> Json:
    told = [{"field": wrong.field, "message": wrong.message, "remedy": wrong.remedy} for wrong in wrongs]
    return {"id": identity, "error": told[0]} | ({"errors": told} if len(told) > 1 else {})


def _label(name: str, case: Mapping[str, Any]) -> str:
    """The key as it is written in the line."""
    if name in case:
        return name
    return next((alias for alias in OPTIONS[name].aliases if alias in case), name)


def _unknown_keys(case: Mapping[str, Any], reading: Reading) -> None:
    """A slip of the pen would plan for something else; a line's own remarks are let be."""
    for name in case:
        if name not in _KNOWN and (near := get_close_matches(name, _KNOWN, n=1, cutoff=0.85)):
            reading.wrongs.append(Wrong(name, "there is no such option.", f"Write {near[0]}, or leave it out."))


def _from_num_gpus(named: Mapping[str, Any], reading: Reading) -> None:
    """GPUs in all, where the line does not say how they share the model: they split its layers."""
    if named.get("num_gpus") is None or "tensor_parallel_size" in reading.found or "tensor_parallel_size" in named:
        return
    reading.take("num_gpus", "num_gpus", values.count(1, values.MOST_GPUS, "2"), named["num_gpus"])
    total = reading.found.pop("num_gpus", 1)
    others = reading.found.get("pipeline_parallel_size", 1) * reading.found.get("data_parallel_size", 1)
    if total % others:
        reading.wrongs.append(
            Wrong("num_gpus", f"{total} GPUs cannot be {others} groups of equal size.", "Give tensor_parallel_size.")
        )
    else:
        reading.found["tensor_parallel_size"] = total // others


def _model(named: Mapping[str, Any], reading: Reading) -> Model:
    """`config` as an object (or a path), else a `model` that says where it is; other models are remarks."""
    config, uri = named.get("config"), named.get("model")
    try:
        if isinstance(config, str):
            return models.from_config(config)
        if config is not None:
            return models.from_document(config, "config")
        if isinstance(uri, str) and uri.startswith(models.REMOTE):
            return models.from_uri(uri)
    except Refused as refused:
        reading.wrongs.append(Wrong("config", refused.message, refused.remedy))
    except NotReached as unreached:
        reading.wrongs.append(Wrong("model", unreached.failure.message, unreached.failure.remedy))
    except BadInput as bad:
        reading.wrongs += bad.wrongs
    return Model()


@contextmanager
def _lines(place: str) -> Iterator[TextIO]:
    if place == models.STDIN:
        yield sys.stdin
        return
    try:
        file = Path(place).open(encoding="utf-8-sig", errors="replace")  # noqa: SIM115 - the next statement closes it
    except OSError as error:
        why = error.strerror or str(error)
        raise BadInput([Wrong("--batch", f"{place} cannot be read: {why}.", "Give a file, or - for stdin.")]) from None
    with file:
        yield file
