"""The documentation as the tests read it: its pages, where they point to, and the manifests that stand in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SERVING = DOCS / "serving"
PAGES = (*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")))
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FILE = re.compile(r"`(?P<file>[\w./*-]+\.(?:py|tpl))(?:::(?P<test>\w+))?`")
PACKAGE_FOLDERS = ("operator", "runtime", "cli", "tools")
"""Where packages lie."""
_CODE_FOLDERS = (*PACKAGE_FOLDERS, "tests", "charts")


def name_of(path: Path) -> str:
    """From the root, as people write it."""
    return path.relative_to(ROOT).as_posix()


def manifests_of(path: Path) -> list[dict[str, Any]]:
    """Every LLMService that stands whole in a page's yaml blocks, or in a yaml file."""
    text = path.read_text(encoding="utf-8")
    blocks = list(_blocks(text, "yaml")) if path.suffix == ".md" else [text]
    documents = [document for block in blocks for document in yaml.safe_load_all(block)]
    return [document for document in documents if isinstance(document, dict) and document.get("kind") == "LLMService"]


def manifests() -> Mapping[str, dict[str, Any]]:
    """All that users may copy, by where they stand."""
    return {
        f"{name_of(path)}-{number}": manifest
        for path in (*PAGES, *EXAMPLES)
        for number, manifest in enumerate(manifests_of(path), 1)
    }


def links(path: Path) -> Iterator[tuple[str, str]]:
    """(path, anchor) of each link to a place in this repository; an empty path is the page itself."""
    prose = _CODE.sub("", prose_of(path))
    for target in _LINK.findall(prose):
        if not re.match(r"[a-z]+:", target):
            place, _, anchor = target.partition("#")
            yield place, anchor


def prose_of(path: Path) -> str:
    """A page without its blocks of code."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """What a link to a heading of this page may say, as GitHub makes it."""
    headings = _HEADING.findall(prose_of(path))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def named_files(path: Path) -> list[tuple[str, str]]:
    """(file, test) of each file of code that a page names in a sentence; an empty test is the whole file."""
    return _FILE.findall(prose_of(path))


def holding(name: str) -> list[Path]:
    """The files of code that a page may mean by a name: a path, the end of one, or a pattern."""
    return [path for path in _files_of_code() if path.match(name)]


@cache
def _files_of_code() -> list[Path]:
    return [path for folder in _CODE_FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".tpl"}]


def code_of(path: Path) -> str:
    """All that a page says in code, in a line or in a block."""
    text = path.read_text(encoding="utf-8")
    blocks = [block["text"] for block in _FENCE.finditer(text)]
    return "\n".join([*blocks, *_CODE.findall(_FENCE.sub("", text))])


def blocks_of(path: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return list(_blocks(path.read_text(encoding="utf-8"), language))


def _blocks(text: str, language: str) -> Iterator[str]:
    for block in _FENCE.finditer(text):
        if block["language"] == language:
            yield re.sub(f"^{block['indent']}", "", block["text"], flags=re.MULTILINE)


_NEEDS = re.compile(r"<!-- needs: (?P<what>[a-z, -]+) -->\n+\Z")


def shell_blocks(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(text, what it needs that tests do not have) of each shell block of a page; `<!-- needs: gpu -->` above it."""
    text = path.read_text(encoding="utf-8")
    for block in _FENCE.finditer(text):
        if block["language"] == "sh":
            mark = _NEEDS.search(text, 0, block.start())
            needs = tuple(what.strip() for what in mark["what"].split(",")) if mark else ()
            yield re.sub(f"^{block['indent']}", "", block["text"], flags=re.MULTILINE), needs


_SHELLS = ("sh", "console", "yaml", "")
_PROMPT = re.compile(r"^\s*(?:\$ |- run: )?")
_PROGRAM = re.compile(r"^(?:llmservice|kubectl|make|helm|docker|pip|python3?|\.venv/bin/\w+) ")


def commands_of(path: Path) -> Iterator[list[str]]:
    """Each command line of a page's blocks as words, without prompt, comment, pipe and redirection."""
    text = path.read_text(encoding="utf-8")
    for language in _SHELLS:
        for block in _blocks(text, language):
            for line in block.replace("\\\n", " ").splitlines():
                bare = _PROMPT.sub("", line)
                if _PROGRAM.match(bare):
                    yield from simple_commands(bare)


def simple_commands(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    is_file = False
    for word in lexer:
        if set(word) <= set("|&;"):
            if words:
                yield words
            words, is_file = [], False
        elif set(word) <= set("<>"):
            is_file = True
        elif not is_file:
            words.append(word)
    if words:
        yield words
