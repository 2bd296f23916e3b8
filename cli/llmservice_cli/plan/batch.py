"""`--batch`: many plans at once, a line of JSON in and a line out, in the same order and as they are made."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, TextIO

from llmservice_api.errors import Problem
from llmservice_planner.plan import Fit

from llmservice_cli import models
from llmservice_cli.documents import in_a_line
from llmservice_cli.errors import STDIN, BadInput, ExitCode, Refused, quoted, read_text, syntax, unreadable
from llmservice_cli.models import Model, NotReached
from llmservice_cli.plan import BY_ALIAS, OPTIONS, Options

from . import values
from .answers import Json, answer, code_of, document, noted, worst
from .questions import Given, Question, exceeded_length, of_options
from .values import ValueReader, counted, device, share_out

MOST_CHARACTERS = 2**30
"""Of a file of cases."""
_OTHERS = ("id", "gpu", "config", "model", "num_gpus")
_ALIASES = {**BY_ALIAS, "gpu_name": "gpu", "gpu_type": "gpu", "gpu_product": "gpu", "gpu_count": "num_gpus"}
_KNOWN = (*OPTIONS, *_ALIASES, *_OTHERS)
_UNCLEAR = dict.fromkeys(("gpu_mem", "gpu_memory", "gpu_util"), "gpu_memory_gib or gpu_memory_utilization")
"""Names that may mean one thing or the other."""


def batch(place: str, out: TextIO, options: Options) -> ExitCode:
    """Plan every line of a file (`-`: stdin). A bad line has its error in the line out; the worst line counts."""
    codes = set()
    for number, line in enumerate(_lines(place), 1):
        line = line.removeprefix("\ufeff") if number == 1 else line
        if not line.strip():
            continue
        found = _line(number, line, options)
        codes.add(ExitCode.BAD_INPUT if "error" in found else code_of(Fit(found["verdict"]), options))
        out.write(f"{in_a_line(found)}\n")
        out.flush()
    return worst(codes)


def planned(case: Mapping[str, Any], *, explain: bool = False, is_offline: bool = False) -> Json:
    """The plan of one case, as a document; BadInput names every key that is wrong."""
    return document(answer(question(case, is_offline=is_offline)), explain=explain)


def question(case: Mapping[str, Any], *, is_offline: bool = False) -> Question:
    """What one case asks; BadInput names every key that is wrong. What vLLM refuses is noted: it was measured once."""
    reading = ValueReader()
    written = {_option(key): key for key, value in case.items() if value is not None}
    named = {name: case[key] for name, key in written.items()}
    for name, option in OPTIONS.items():
        reading.take(name, written.get(name, name), option.read, named.get(name))
    _unknown_keys(case, reading)
    reading.take("gpu_name", written.get("gpu", "gpu"), counted, named.get("gpu"))
    number, name = reading.found.pop("gpu_name", (None, None))
    if number is not None:
        named.setdefault("num_gpus", number)
    _from_num_gpus(named, written.get("num_gpus", "gpu"), reading)
    memory = reading.found.get("gpu_memory_gib")
    reading.take("device", written.get("gpu", "gpu"), lambda asked: device(asked, memory), name)
    model = _model(named, reading, is_offline=is_offline)
    if reading.problems:
        raise BadInput(reading.problems)
    gpu = reading.found.pop("device", None)
    given = Given(
        values=reading.found,
        devices=() if gpu is None else (gpu,),
        model=model,
        notes=tuple(reading.notes),
        label=lambda name: written.get(name, name),
    )
    asked = of_options(given)
    notes = (*asked.notes, *_too_long(asked))
    return noted(replace(asked, notes=notes, allows_long=True))


def _too_long(question: Question) -> Iterator[str]:
    """What the memory allows and vLLM does not."""
    if longest := exceeded_length(question.request):
        yield (
            f"the model was made for {longest:,} tokens: vLLM refuses {question.request.max_model_len:,} unless its "
            "positions are rescaled (spec.contextExtension)"
        )


def _line(number: int, line: str, options: Options) -> Json:
    """What one line comes to; `error` is in it where it was a bad one."""
    try:
        case = json.loads(line)
    except (ValueError, RecursionError) as error:
        return _error(None, [Problem(f"line {number}", f"it is no JSON: {syntax(error)}.", "Write one object a line.")])
    if not isinstance(case, dict):
        problem = Problem(
            f"line {number}", f"{quoted(case)} is no object.", 'Write one such as {"id": 1, "gpu": "L4"}.'
        )
        return _error(None, [problem])
    try:
        return {"id": case.get("id")} | planned(case, explain=options.explain, is_offline=options.offline)
    except BadInput as bad:
        return _error(case.get("id"), bad.problems)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as bug:
        # A mistake of ours: the lines after this one are worth their plans all the same.
        why = f"the planner failed: {type(bug).__name__}: {bug}."
        return _error(case.get("id"), [Problem(f"line {number}", why, "Report it with this line.")])


def _error(identity: object, problems: Sequence[Problem]) -> Json:
    errors = [{"field": problem.field, "message": problem.message, "remedy": problem.remedy} for problem in problems]
    return {"id": identity, "error": errors[0]} | ({"errors": errors} if len(errors) > 1 else {})


def _unknown_keys(case: Mapping[str, Any], reading: ValueReader) -> None:
    """A misspelt option is a problem: it would plan for something else. Other keys are ignored."""
    seen: dict[str, str] = {}
    for key, value in case.items():
        name = _option(key)
        if name in _UNCLEAR and value is not None:
            reading.problems.append(Problem(key, "it may mean two options.", f"Write {_UNCLEAR[name]}."))
        elif name not in _KNOWN:
            if near := get_close_matches(name, _KNOWN, n=1, cutoff=0.85):
                reading.problems.append(Problem(key, "there is no such option.", f"Write {near[0]}, or leave it out."))
        elif value is not None:
            other = seen.setdefault(name, key)
            if case[other] != value:
                reading.problems.append(Problem(key, f"{other} says something else of it.", "Leave one of them out."))


def _option(key: str) -> str:
    """The option that a key means, however it is written: `max-model-len`, `maxModelLen`, `tp`, `GPU`."""
    if key in _KNOWN:
        return _ALIASES.get(key, key)
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key.strip().lstrip("-"))
    plain = re.sub(r"[\s._-]+", "_", plain).lower()
    return _ALIASES.get(plain, plain)


def _from_num_gpus(named: Mapping[str, Any], label: str, reading: ValueReader) -> None:
    """GPUs in all, where the line does not say how they share the model."""
    if named.get("num_gpus") is None or "tensor_parallel_size" in named:
        return
    reading.take("num_gpus", label, values.count(1, values.MOST_GPUS, "2"), named["num_gpus"])
    share_out(reading.found.pop("num_gpus", 1), label, reading)


def _model(named: Mapping[str, Any], reading: ValueReader, *, is_offline: bool) -> Model:
    """`config` as an object (or a path), else a `model` that says where it is; other models are remarks."""
    config, uri = named.get("config"), named.get("model")
    try:
        if isinstance(config, str):
            return models.from_config(config, "config")
        if config is not None:
            return models.from_document(config, "config")
        if isinstance(uri, str) and uri.startswith(models.REMOTE):
            if is_offline:
                raise BadInput.of("model", f"{uri} is not read with --offline.", "Give its config.json as config.")
            return models.from_uri(uri)
    except Refused as refused:
        reading.problems.append(Problem("config", refused.message, refused.remedy))
    except NotReached as unreached:
        reading.problems.append(Problem("model", unreached.failure.message, unreached.failure.remedy))
    except BadInput as bad:
        reading.problems += bad.problems
    return Model()


def _lines(place: str) -> Iterator[str]:
    """Of standard input as they come."""
    remedy = "Give a file, or - for stdin."
    if place != STDIN:
        yield from read_text(place, "--batch", remedy, errors="replace", most=MOST_CHARACTERS).split("\n")
        return
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    try:
        yield from sys.stdin
    except OSError as error:
        raise unreadable(error, "--batch", remedy) from None
