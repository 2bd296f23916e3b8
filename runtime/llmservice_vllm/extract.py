"""Read a version of vLLM from its own code, write its file and say what is other than in the version before.

Flags come from vLLM's parser, which is imported; everything else is read from its sources without importing them, so
that it needs neither a GPU nor what vLLM requires. This module is not copied into pods.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from llmservice_vllm import extract_messages
from llmservice_vllm.modules import DISTRIBUTIONS, ENGINE_MODULES, ENTRY, HEADLESS, WORKERS
from llmservice_vllm.versions import DEFAULT, FOLDER, known_versions, order, section, stated_version

ROOT = Path(__file__).parents[2]
CUDA, CPU, _ = DISTRIBUTIONS
EXAMPLES = """\
examples:
  python -m llmservice_vllm.extract                    the version that is installed (make engine)
  python -m llmservice_vllm.extract 0.33.0             another one: its wheel is fetched
  python -m llmservice_vllm.extract 0.33.0 --default   and it becomes what services get that name no version
  python -m llmservice_vllm.extract newest             the newest one there is; nothing where it is known
"""
PLACES = (
    "charts/llmservice-operator/values.yaml",
    "docs/get-started/no-gpu.md",
    "docs/install.md",
    "docs/releases.md",
    "docs/serving/runtime.md",
    "examples/placement.yaml",
    "pyproject.toml",
)
"""Files for users, and files that other programs parse, which name the default version; code calls
default_version()."""
_PINNED = re.compile(r"(vllm(?:-openai|-cpu)?(?::v|==)|^ +version: )\d+\.\d+\.\d+", re.MULTILINE)
_DEFAULT = re.compile(r'(?m)^DEFAULT = "[\d.]+"$')
NEXT = """\
Next:
  1. git diff; say in CHANGELOG.md what came and went
  2. python -m tests.support.flag_forms {version}; make crds
  3. .venv/bin/pytest tests/unit/vllm
     .venv/bin/pytest -m vllm tests/unit             rules, methods, enums and figures against the installed vLLM"""
AS_DEFAULT = """
  4. tools/scripts/uv lock; python tools/scripts/export_requirements.py; make engine; make e2e
     llmservice_planner/overheads.py, where the version profiles itself otherwise
     techniques.py, dtypes.py and matrix/ of llmservice_api: values that tests of step 3 miss or find too many"""
_MOST_REFUSALS = 40
Sections = dict[str, dict[str, Any]]
"""Of a version: section, name in it, and its facts."""


class NotFound(Exception):
    """Something is in none of the known places; the message names the places."""


class Sources:
    """The Python files of a vLLM, read as text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """The folder of the package `vllm`."""

    @functools.cached_property
    def files(self) -> tuple[Path, ...]:
        return tuple(sorted(self.folder.rglob("*.py")))

    def strings(self, file: str, name: str) -> set[str]:
        """The texts of a Literal or list of a module, including names that it refers to."""
        found: set[str] = set()
        names = [name]
        while names:
            for leaf in ast.walk(self._value(file, names.pop())):
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str):
                    found.add(leaf.value)
                elif isinstance(leaf, ast.Name) and leaf.id not in ("Literal", "list", "set", "frozenset"):
                    names.append(leaf.id)
        return found

    def keys(self, file: str, name: str) -> set[str]:
        """The keys of a dictionary of a module, including those that it merges."""
        return set(self._entries(file, name))

    def _entries(self, file: str, name: str) -> dict[str, ast.expr]:
        value = self._value(file, name)
        if not isinstance(value, ast.Dict):
            raise NotFound(f"{name} of vllm/{file} is no dictionary any more")
        found: dict[str, ast.expr] = {}
        for key, each in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                found[key.value] = each
            elif key is None and isinstance(each, ast.Name):
                found |= self._entries(file, each.id)
        return found

    def models_without(self, base: str) -> set[str]:
        """Architectures that vLLM serves with a class of its own without this base, except drafts."""
        models = self._entries(_REGISTRY, "_VLLM_MODELS")
        return {
            name
            for name in models.keys() - self.keys(_REGISTRY, "_SPECULATIVE_DECODING_MODELS")
            if not self._has_base(*_module_and_class(models[name]), base)
        }

    def _has_base(self, module: str, name: str, base: str) -> bool:
        """Whether a class, or one with its name for a platform, has a base; follows imports inside vLLM."""
        left, seen = [(module, name)], set[tuple[str, str]]()
        while left:
            one = left.pop()
            if one[1] == base:
                return True
            if one not in seen:
                seen.add(one)
                left += [origin for known, origin in self._origins(one[0]) if known == one[1]]
        return False

    @functools.cache  # noqa: B019 - as below
    def _origins(self, module: str) -> tuple[tuple[str, tuple[str, str]], ...]:
        """Names of a module, each with its origin (module, name): base, value or import."""
        top, *parts = module.split(".")
        files = [one for end in (".py", "/__init__.py") if (self.folder / (one := "/".join(parts) + end)).is_file()]
        if top != "vllm" or not files:
            return ()
        package = ".".join(("vllm", *Path(files[0]).parent.parts))
        found: list[tuple[str, tuple[str, str]]] = []
        for node in ast.walk(self._tree(files[0])):
            if isinstance(node, ast.ClassDef):
                found += [(node.name, (module, name)) for each in node.bases for name in _names(each)]
            elif isinstance(node, ast.Assign):
                targets = [each.id for each in node.targets if isinstance(each, ast.Name)]
                found += [(target, (module, name)) for target in targets for name in _names(node.value)]
            elif isinstance(node, ast.ImportFrom):
                origin = importlib.util.resolve_name(f"{'.' * node.level}{node.module or ''}", package)
                found += [(alias.asname or alias.name, (origin, alias.name)) for alias in node.names]
        return tuple(found)

    def members(self, file: str, name: str) -> set[str]:
        """The members of an enumeration of a module."""
        for node in self._tree(file).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                targets = [each.targets[0] for each in node.body if isinstance(each, ast.Assign)]
                return {target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper()}
        raise NotFound(f"there is no class {name} in vllm/{file}")

    def matches(self, pattern: str, below: str = "") -> set[str]:
        """Matches of a pattern's first group in the files of a folder."""
        expression, folder = re.compile(pattern), self.folder / below
        return {
            found for path in self.files if path.is_relative_to(folder) for found in expression.findall(_text(path))
        }

    def lacks(self, *modules: str) -> list[str]:
        """Those of the modules that are missing, in words."""
        files = [f"{module.replace('.', '/')}.py" for module in modules]
        return [
            f"{file}: there is none; correct modules.py"
            for file in files
            if self.folder.parent / file not in self.files
        ]

    def parser_modules(self) -> list[str]:
        """The modules that build the server's parser; they have moved twice."""
        found = [path for path in self.files if path.stem == "cli_args" and "\ndef make_arg_parser(" in _text(path)]
        if not found:
            raise NotFound(f"no cli_args.py below {self.folder} defines make_arg_parser")
        return [".".join(("vllm", *path.relative_to(self.folder).with_suffix("").parts)) for path in found]

    @functools.lru_cache(maxsize=64)  # noqa: B019  # one object lives as long as the command
    def _tree(self, file: str) -> ast.Module:
        path = self.folder / file
        if not path.is_file():
            raise NotFound(f"there is no vllm/{file}")
        return ast.parse(_text(path))

    def _value(self, file: str, name: str) -> ast.expr:
        for node in ast.walk(self._tree(file)):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                    return node.value
        raise NotFound(f"there is no {name} in vllm/{file}")


def _names(expression: ast.expr) -> list[str]:
    return [leaf.id for leaf in ast.walk(expression) if isinstance(leaf, ast.Name)]


def _module_and_class(entry: ast.expr) -> tuple[str, str]:
    """Of an entry of the registry: its module, relative to the models or in full, and its class."""
    module, name = ast.literal_eval(entry)
    return module if module.startswith("vllm.") else f"vllm.model_executor.models.{module}", name


_REGISTRY = "model_executor/models/registry.py"
_QUANTIZATION = "model_executor/layers/quantization/__init__.py"
_POST = r"""\.(?:post\(|add_api_route\((?=[^)]*methods=\["POST"\]))\s*"(/[^"]*)\""""
_METRIC = r'"(vllm:[a-z0-9_]+)"'
WORDS: Mapping[str, Callable[[Sources], set[str]]] = {
    "architectures": lambda vllm: vllm.keys(_REGISTRY, "_VLLM_MODELS"),
    "architecturesWithoutLora": lambda vllm: vllm.models_without("SupportsLoRA"),
    "attentionBackends": lambda vllm: vllm.members("v1/attention/backends/registry.py", "AttentionBackendEnum"),
    "dtypes": lambda vllm: vllm.strings("config/model.py", "ModelDType"),
    "environment": lambda vllm: {
        name for name in vllm.keys("envs.py", "environment_variables") if name.startswith("VLLM_")
    },
    "kvCacheDtypes": lambda vllm: vllm.strings("config/cache.py", "CacheDType"),
    "loadFormats": lambda vllm: vllm.strings("model_executor/model_loader/__init__.py", "LoadFormats"),
    "metrics": lambda vllm: vllm.matches(_METRIC),
    "posts": lambda vllm: vllm.matches(_POST, "entrypoints"),
    "quantizations": lambda vllm: vllm.strings(_QUANTIZATION, "QuantizationMethods"),
    "reasoningParsers": lambda vllm: vllm.keys("reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER"),
    "speculativeMethods": lambda vllm: vllm.strings("config/speculative.py", "SpeculativeMethod"),
    "toolCallParsers": lambda vllm: vllm.keys("tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER"),
}
"""The word lists of a version, with the functions that read them."""


def server_parser(sources: Sources) -> argparse.ArgumentParser:
    """The parser of `python -m vllm.entrypoints.openai.api_server`; `sources` is the imported vLLM."""
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    # vLLM for GPUs detects no platform without one, and then builds no parser.
    vllm.platforms._current_platform = CpuPlatform()
    module = importlib.import_module(sources.parser_modules()[0])
    parser: argparse.ArgumentParser = module.make_arg_parser(FlexibleArgumentParser(prog="api_server.py"))
    return parser


def flags(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Every flag of a parser, by its first spelling."""
    spellings: dict[int, list[str]] = {}
    # Not the actions' option_strings: these are shown by help, and the parser accepts more.
    for spelling, action in parser._option_string_actions.items():
        spellings.setdefault(id(action), []).append(spelling)
    return {some[0]: _entry(parser, parser._option_string_actions[some[0]], some) for some in spellings.values()}


def _entry(parser: argparse.ArgumentParser, action: argparse.Action, spellings: Sequence[str]) -> dict[str, Any]:
    """A flag as in the files, without defaults (see versions.py)."""
    kinds: dict[Any, str] = {int: "int", float: "float"}
    negated = [one for one in spellings if _switches_off(parser, action, one)]
    # A custom type may change the text before the choices are checked.
    comparable = action.choices if action.type in (None, int, str) else None
    made = {
        "also": [one for one in spellings[1:] if one not in negated],
        "negated": negated,
        "values": None if action.nargs in (None, 1) else action.nargs,
        "kind": None if action.nargs == 0 else kinds.get(action.type),
        "choices": [str(choice) for choice in comparable or () if choice is not None],
        "default": action.default if isinstance(action.default, str | int | float) else None,
    }
    return {key: value for key, value in made.items() if value not in (None, [], argparse.SUPPRESS)}


def _switches_off(parser: argparse.ArgumentParser, action: argparse.Action, spelling: str) -> bool:
    if not isinstance(action, argparse.BooleanOptionalAction):
        return False
    namespace = argparse.Namespace()
    action(parser, namespace, [], spelling)
    return getattr(namespace, action.dest) is False


def read(folder: Path, version: str) -> Sections:
    """All sections of the vLLM whose package is in a folder."""
    sources = Sources(folder / "vllm")
    if not sources.files:
        raise NotFound(f"{folder} has no package vllm")
    done = subprocess.run(
        [sys.executable, "-m", "llmservice_vllm.extract", "--flags-of", str(folder)],
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{Path(__file__).parents[1]}"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: Sections = {"flags": json.loads(done.stdout)}
    problems = sources.lacks(ENTRY, *HEADLESS, *ENGINE_MODULES, *WORKERS.values())
    for name, look in WORDS.items():
        try:
            found[name] = dict.fromkeys(sorted(look(sources)))
        except NotFound as error:
            problems.append(f"{name}: {error}")
        else:
            problems += [] if found[name] else [f"{name}: nothing was found"]
    if problems:
        raise NotFound(f"vLLM {version} is written otherwise; correct WORDS of {__file__}:\n  " + "\n  ".join(problems))
    return found


def installed() -> tuple[Path, str]:
    """Folder and version of the installed vLLM, under either name of its distribution."""
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(name).split("+")[0]
            return Path(str(importlib.metadata.distribution(name).locate_file(""))), version
    raise SystemExit("vLLM is not installed: run make engine, or name a version")


def newest() -> str:
    look = ["pip", "install", "--dry-run", "--no-deps", "--python", sys.executable, "--target", tempfile.gettempdir()]
    command = [str(ROOT / "tools" / "scripts" / "uv"), *look, CUDA]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"\bvllm==(\d+\.\d+\.\d+)\b", done.stdout + done.stderr)
    if found is None:
        raise SystemExit(f"the package index names no version of vLLM: {done.stderr.strip()}")
    return found[1]


@contextlib.contextmanager
def fetched(version: str) -> Iterator[Path]:
    """A folder with the files of a version that is not installed, without its dependencies."""
    with tempfile.TemporaryDirectory() as folder:
        said = []
        for name in (CPU, CUDA):  # the smaller one first
            install = ["pip", "install", "--quiet", "--python", sys.executable, "--no-deps", "--target", folder]
            command = [str(ROOT / "tools" / "scripts" / "uv"), *install, f"{name}=={version}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                yield Path(folder)
                return
            said.append(f"{name}=={version}: {done.stderr.strip()}")
        raise SystemExit("there is no such wheel:\n" + "\n".join(said))


def files_with(version: str, found: Sections) -> dict[Path, str]:
    """Contents of this version's file, in place of an earlier one of its series, and of the next version's file."""
    series = version.rpartition(".")[0]
    every = {known: (stated_version(known), _all_of(known)) for known in known_versions()}
    every[series] = (version, found)
    texts, before = {}, Sections()
    for known in sorted(every, key=order):
        stated, now = every[known]
        texts[FOLDER / f"{known}.json"] = _text_of(stated, before, now)
        before = now
    return {path: text for path, text in texts.items() if not (path.exists() and path.read_text() == text)}


def _all_of(known: str) -> Sections:
    return {name: section(known, name) for name in ("flags", *WORDS)}


def _text_of(stated: str, before: Sections, now: Sections) -> str:
    """One flag per line, filled lines of words, for readable differences."""
    gone = {name: sorted(before.get(name, {}).keys() - some.keys()) for name, some in now.items()}
    parts = [f' "version": {json.dumps(stated)}']
    if any(gone.values()):
        lines = [f'  "{name}": {json.dumps(some)}' for name, some in gone.items() if some]
        parts.append(' "gone": {\n' + ",\n".join(lines) + "\n }")
    for name, some in now.items():
        new = {one: some[one] for one in sorted(some) if (one, some[one]) not in before.get(name, {}).items()}
        if name == "flags":
            lines = [f"  {json.dumps(one)}: {json.dumps(entry)}" for one, entry in new.items()]
            parts.append(' "flags": {\n' + ",\n".join(lines) + "\n }")
        elif new:
            fill = textwrap.TextWrapper(118, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False).fill
            parts.append(f' "{name}": [\n{fill(json.dumps(list(new))[1:-1])}\n ]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def differences(before: Sections, now: Sections) -> Iterator[str]:
    old, new = before["flags"], now["flags"]
    gone, came = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    renamed = {one: near[0] for one in gone if (near := get_close_matches(one, _alike(old[one], new, came), n=1))}
    yield from (f"flag renamed: {one} is {other}" for one, other in renamed.items())
    yield from (f"flag removed: {one}" for one in gone if one not in renamed)
    yield from (f"flag added: {one}" for one in came if one not in renamed.values())
    for name in sorted(old.keys() & new.keys()):
        for key in ("also", "negated", "values", "kind", "choices", "default"):
            was, is_ = old[name].get(key), new[name].get(key)
            if was != is_:
                yield f"{_SAID[key]} of {name}: {_change(was, is_)}"
    for name in WORDS:
        was_there, is_there = before.get(name, {}).keys(), now[name].keys()
        yield from (f"{name}: {word} is gone" for word in sorted(was_there - is_there))
        yield from (f"{name}: {word} is new" for word in sorted(is_there - was_there))


def refusals(before: str, series: str, listed: Sequence[extract_messages.Message]) -> Iterator[str]:
    """Messages that end a start in one version and not in the one before."""
    new = [one for one in listed if series in one.versions and before not in one.versions]
    yield from (f"refusal new: vllm/{one.file}: {one.text}" for one in new[:_MOST_REFUSALS])
    if new[_MOST_REFUSALS:]:
        yield f"and {len(new) - _MOST_REFUSALS} refusals more: git diff {extract_messages.FILE.relative_to(ROOT)}"


_SAID = {
    "also": "other spellings",
    "negated": "negation",
    "values": "number of values",
    "kind": "kind of value",
    "choices": "choices",
    "default": "default",
}


def _alike(entry: dict[str, Any], flags: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Those of some flags that take the same values."""
    return [one for one in names if all(flags[one].get(key) == entry.get(key) for key in ("values", "kind", "choices"))]


def _change(was: object, now: object) -> str:
    if isinstance(was, list) and isinstance(now, list):
        without, more = [one for one in was if one not in now], [one for one in now if one not in was]
        return ", ".join([*(f"without {one}" for one in without), *(f"with {one}" for one in more)]) or "another order"
    return f"{was!r} was, {now!r} is"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def with_default(root: Path, version: str) -> dict[Path, str]:
    """Contents of files that name the default version, below a repository's root, if they change."""
    texts = {root / path: _PINNED.sub(rf"\g<1>{version}", (root / path).read_text()) for path in PLACES}
    code = root / "runtime/llmservice_vllm/versions.py"
    texts[code] = _DEFAULT.sub(f'DEFAULT = "{version.rpartition(".")[0]}"', code.read_text())
    return {path: text for path, text in texts.items() if path.read_text() != text}


def add(folder: Path, version: str, *, is_default: bool) -> str:
    """Write the facts of the vLLM in a folder; returns the differences from the version before, and the next steps."""
    found, series = read(folder, version), version.rpartition(".")[0]
    earlier = [known for known in known_versions() if order(known) < order(series)]
    said = list(differences(_all_of(earlier[0]), found)) if earlier else []
    written = files_with(version, found) | (with_default(ROOT, version) if is_default else {})
    if order(series) >= order(DEFAULT):
        known = extract_messages.load()
        listed = extract_messages.merged(known, extract_messages.collect(folder / "vllm", series), series)
        said += refusals(earlier[0], series, listed) if earlier else ()
        written |= {extract_messages.FILE: extract_messages.data_text(listed)} if listed != known else {}
    for path, text in written.items():
        path.write_text(text)
    names = ", ".join(str(path.relative_to(ROOT)) for path in written) or "nothing, it is all there"
    head = f"vLLM {version}: {len(found['flags'])} flags. Other than in {earlier[0] if earlier else 'no version'}:"
    then = NEXT.format(version=version) + (AS_DEFAULT if is_default else "")
    return "\n".join([head, *(f"  {line}" for line in said or ["nothing"]), f"Written: {names}.", then, ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Read and write; progress and errors go to standard error."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m llmservice_vllm.extract", description=__doc__, epilog=EXAMPLES, formatter_class=formatter
    )
    parser.add_argument("version", nargs="?", help="MAJOR.MINOR.PATCH, or newest; default: the one that is installed")
    parser.add_argument("--default", action="store_true", help="make it the version of services that name none")
    parser.add_argument("--from", dest="folder", type=Path, help="a folder with the package vllm, in place of a wheel")
    parser.add_argument("--flags-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.flags_of:
        with contextlib.redirect_stdout(sys.stderr):  # some versions log on import
            found = flags(server_parser(Sources(options.flags_of / "vllm")))
        json.dump(found, sys.stdout)
        return
    if options.version == "newest":
        options.version = newest()
        if order(options.version) <= order(known_versions()[0]):
            print(f"vLLM {options.version} is the newest one, and known", file=sys.stderr)
            return
    if options.version and not re.fullmatch(r"\d+\.\d+\.\d+", options.version):
        parser.error(f"{options.version} is no version: it is MAJOR.MINOR.PATCH, such as 0.33.0")
    if options.folder and not options.version:
        parser.error("--from needs the version that the folder has")
    with contextlib.ExitStack() as stack:
        if options.folder:
            folder, version = options.folder, options.version
        elif options.version:
            print(f"fetching vLLM {options.version}, some hundred megabytes", file=sys.stderr)
            folder, version = stack.enter_context(fetched(options.version)), options.version
        else:
            folder, version = installed()
        try:
            sys.stdout.write(add(folder, version, is_default=options.default))
        except NotFound as error:
            raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
