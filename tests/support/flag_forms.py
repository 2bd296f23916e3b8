"""Every form in which the operator renders a flag, and whether each known version of vLLM takes it.

`python -m tests.support.flag_forms 0.34.0` asks the wheels of the named versions and records their answers; without a
version it asks the vLLM that is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmservice_api.flags import FLAGS
from llmservice_api.service import LLMService
from llmservice_api.spec import LLMServiceSpec
from llmservice_operator.manifests.server import vllm_arguments
from llmservice_planner.versions import problems
from llmservice_runtime.preflight.model_checks import Extension
from llmservice_runtime.preflight.model_checks import extension_arguments as extended
from llmservice_runtime.supervisor.addresses import EVERY_IPV4
from llmservice_runtime.supervisor.vllm_process import Flags
from llmservice_vllm.extract import Sources, fetched, installed, server_parser
from llmservice_vllm.versions import known_versions, order, series, words_of_all

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests/unit/fixtures/flag_forms.json"
Json = dict[str, Any]
Fragment = tuple[str, ...]
"""The part of a command line that a field adds."""
MODEL: Json = {"uri": "file:///m"}
NAMES = {"--tool-call-parser": "toolCallParsers", "--reasoning-parser": "reasoningParsers"}
"""Flags whose words the API does not list; the operator judges them by these lists."""
SUPERVISORS: tuple[Fragment, ...] = (
    ("--host", EVERY_IPV4),
    extended({"max_position_embeddings": 4096}, Extension("yarn", 4.0), Flags()),
)
"""What the supervisor adds in the pod."""


@functools.cache
def forms(version: str) -> Mapping[Fragment, bool]:
    """Each fragment for a version, and whether the operator renders it: False where it refuses the service."""
    plain = LLMService.from_object(_document({}))
    base = vllm_arguments(plain, version)
    found = {base: _is_taken(plain, version, base)}
    for spec in _specs():
        service = LLMService.from_object(_document(spec))
        arguments = vllm_arguments(service, version)
        given = set(_flags(base))
        fragment = tuple(token for flag in _flags(arguments) if flag not in given for token in flag)
        if fragment:
            found[fragment] = _is_taken(service, version, arguments)
    return found | dict.fromkeys(SUPERVISORS, True)


def _document(spec: Json) -> Json:
    spec = {**spec, "model": MODEL | spec.get("model", {})}
    return {"metadata": {"name": "a", "namespace": "b", "uid": "c"}, "spec": spec}


def _is_taken(service: LLMService, version: str, arguments: Fragment) -> bool:
    return not list(problems(service.spec, version, arguments))


def _flags(arguments: Fragment) -> Iterator[Fragment]:
    """Each flag with its values."""
    starts = [index for index, token in enumerate(arguments) if token.startswith("--")]
    for start, end in zip(starts, [*starts[1:], len(arguments)], strict=True):
        yield arguments[start:end]


def _specs() -> Iterator[Json]:
    """For each field with a flag, and each field below one: every word, both states of a switch, both bounds of a
    number, and the examples of its documentation."""
    schema = LLMServiceSpec.model_json_schema(by_alias=True)
    for flag in FLAGS:
        path = flag.field.split(".")[1:]
        *sections, name = path
        place = functools.reduce(lambda at, one: _object(at["properties"][one], schema) or {}, sections, schema)
        values = sorted(words_of_all(NAMES[flag.name])) if flag.name in NAMES else ()
        for value in values or _values(place["properties"][name], schema):
            spec: Any = value
            for one in reversed(path):
                spec = {one: spec}
            yield spec


def _values(field: Json, schema: Json) -> Iterator[Any]:
    whole = _object(field, schema)
    example = field.get("examples", [{}])[0]
    for name, inner in (whole or {}).get("properties", {}).items():
        yield from (example | {name: value} for value in _values(inner, schema))
    for kind in _kinds(field, schema):
        yield from kind.get("enum", ())
        yield from (kind[bound] for bound in ("const", "minimum", "maximum") if bound in kind)
        yield from (False, True) if kind.get("type") == "boolean" else ()
    yield from field.get("examples", () if whole is None else [{}])


def _object(field: Json, schema: Json) -> Json | None:
    return next((kind for kind in _kinds(field, schema) if "properties" in kind), None)


def _kinds(field: Json, schema: Json) -> Iterator[Json]:
    """A field's schema, and those that it refers to."""
    yield field
    for other in field.get("anyOf", ()):
        yield from _kinds(other, schema)
    if "$ref" in field:
        yield schema["$defs"][field["$ref"].rpartition("/")[2]]


CONFIGS = ("Model", "Cache", "Parallel", "Scheduler", "LoRA", "MultiModal", "Attention", "Vllm")
"""vLLM's classes whose fields check what its parser took."""
RENAMED = {"kv_cache_dtype": "cache_dtype", "attention_backend": "backend", "scheduling_policy": "policy"}
"""Arguments whose field in these classes has another name."""
WHOLE = {"compilation_config": "CompilationConfig", "speculative_config": "SpeculativeConfig"}
"""Arguments that are all fields of one class."""
_NO_FIELD = "of_no_class"


def refusals(parser: argparse.ArgumentParser, fragments: Iterable[Sequence[str]]) -> Iterator[str | None]:
    """What the vLLM that is imported says to each fragment; None where it takes it. `parser` raises its errors."""
    defaults = vars(parser.parse_args([]))
    for fragment in fragments:
        try:
            parsed = vars(parser.parse_args(list(fragment)))
        except (KeyError, ValueError) as error:
            yield str(error)
        else:
            given = {name: value for name, value in parsed.items() if value != defaults[name]}
            yield next(filter(None, map(_refusal, given, given.values())), None)


def _refusal(name: str, value: Any) -> str | None:
    """What vLLM says to the value of an argument after it was parsed: its lists of words, and its classes' fields."""
    import vllm.config
    from vllm.model_executor.layers.quantization import DEPRECATED_QUANTIZATION_METHODS, QUANTIZATION_METHODS
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    listed = {
        "quantization": set(QUANTIZATION_METHODS) - set(DEPRECATED_QUANTIZATION_METHODS),
        "reasoning_parser": ReasoningParserManager.list_registered(),
        "tool_call_parser": ToolParserManager.list_registered(),
    }
    if name in listed:
        return None if value in listed[name] else f"{name}: {value} is not listed"
    if name in WHOLE:
        whole = getattr(vllm.config, WHOLE[name])
        assert isinstance(value, dict | whole)  # some versions make the class while they parse
        return _of_fields(whole, value) if isinstance(value, dict) else None
    field = RENAMED.get(name, name)
    made = (getattr(vllm.config, f"{config}Config") for config in CONFIGS)
    having = [one for one in made if field in {each.name for each in dataclasses.fields(one)}]
    return _of_fields(having[0], {field: value}) if having else None


def _of_fields(config: Callable[..., object], values: Json) -> str | None:
    """What the fields of a class say to values. One that it does not have keeps it from looking at the model."""
    from pydantic import ValidationError

    try:
        config(**values, **{_NO_FIELD: None})
    except ValidationError as error:
        said = {str(each["loc"][0]): each["msg"] for each in error.errors() if each["loc"]}
        assert _NO_FIELD in said, f"{config} takes any field"
        return next((f"{name}: {said[name]}" for name in values if name in said), None)
    raise AssertionError(f"{config} takes any field")


def raising(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser, which fails by an exception instead of ending the process."""

    def error(message: str) -> None:
        raise ValueError(message)

    parser.error = error  # type: ignore[method-assign, assignment]
    return parser


def asked(folder: Path, version: str) -> dict[str, str | None]:
    """What the vLLM whose package is in a folder says to each form, in a process of its own; None where it takes it."""
    fragments = list(forms(version))
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.flag_forms", "--of", str(folder)],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=ROOT,
        input=json.dumps(fragments),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(map(" ".join, fragments), json.loads(done.stdout), strict=True))


def rendered(version: str) -> dict[str, bool]:
    """The forms as they are recorded: whether the operator takes each for a version."""
    return {" ".join(fragment): is_taken for fragment, is_taken in forms(version).items()}


def recorded(version: str) -> dict[str, bool]:
    """Whether a version took each form when it was asked."""
    table, known = json.loads(FILE.read_text()), series(version)
    rows = {form: (taken.split(), refused.split()) for form, (taken, refused) in table.items()}
    return {form: known in taken for form, (taken, refused) in rows.items() if known in (*taken, *refused)}


def record(answers: Mapping[str, Mapping[str, bool]]) -> None:
    """Write the answers of series, a line a form: those that take it, and those that refuse it."""
    rows: dict[str, list[list[str]]] = {}
    for known in sorted(answers, key=order):
        for form, is_taken in answers[known].items():
            rows.setdefault(form, [[], []])[not is_taken].append(known)
    lines = (f" {json.dumps(form)}: {json.dumps(list(map(' '.join, row)))}" for form, row in rows.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    """Ask versions one after another, say what each refuses, and record it beside what is recorded of the others."""
    options = argparse.ArgumentParser("python -m tests.support.flag_forms", description=__doc__)
    options.add_argument("versions", nargs="*", help="MAJOR.MINOR.PATCH; default: the one that is installed")
    options.add_argument("--of", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.of:
        with contextlib.redirect_stdout(sys.stderr):  # some versions log there while they are imported
            parser = raising(server_parser(Sources(given.of / "vllm")))
            said = list(refusals(parser, json.load(sys.stdin)))
        json.dump(said, sys.stdout)
    for version in given.versions:
        with fetched(version) as folder:
            _record(folder, version)
    if not given.of and not given.versions:
        _record(*installed())


def _record(folder: Path, version: str) -> None:
    answers = asked(folder, version)
    print(f"vLLM {version} refuses", *(f"  {form}\n    {why}" for form, why in answers.items() if why), sep="\n")
    still = {known: rendered(known) for known in known_versions()}
    every = {known: {form: one for form, one in recorded(known).items() if form in still[known]} for known in still}
    record(every | {str(series(version)): {form: why is None for form, why in answers.items()}})


if __name__ == "__main__":
    main()
