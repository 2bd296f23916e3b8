"""Markdown as a code host shows it, turned into what Python-Markdown shows the same way. Pure."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_ITEM = re.compile(r"(?P<marker>[-*+]|\d{1,9}[.)])(?P<space> +)(?=\S)")
_FENCE = re.compile(r"(?P<ticks>`{3,})(?P<language>[\w-]*)")
_CODE_OR_LINK = re.compile(r"(?P<code>(?P<ticks>`+).+?(?P=ticks))|\]\((?P<target>[^)\s]+)\)")
_HOST = re.compile(r"([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}", re.IGNORECASE)
_STEP = "    "

PROJECT_PAGES = {
    "README.md": "project/readme.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/reporting.md",
}
"""Pages of the repository's root, by where they are in the site."""
FILES = "files"
"""The folder of the site for files of the repository that are no pages."""


def github_slug(text: str, separator: str = "-") -> str:
    """The anchor of a heading, as code hosts make it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", separator)


def site_path(source: str) -> str:
    """Where a file of the repository is in the site; both are relative to their roots."""
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    return PROJECT_PAGES.get(source) or f"{FILES}/{source}"


def resolved(page: str, place: str) -> str:
    """The file of the repository that a page of it links to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), place)) if place else page


def site_link(page: str, target: str) -> str:
    """A relative link of a page of the repository, as its page in the site needs it."""
    place, mark, anchor = target.partition("#")
    if not place:
        return target
    there = posixpath.relpath(site_path(resolved(page, place)), posixpath.dirname(site_path(page)) or ".")
    return f"{there}{mark}{anchor}"


def is_external(target: str) -> bool:
    return re.match(r"[a-zA-Z][\w+.-]*:", target) is not None


def malformed(target: str) -> str:
    """Why an external link cannot be right; empty where its form is good. Nothing is requested."""
    parts = urlsplit(target)
    if parts.scheme == "mailto":
        return "" if "@" in parts.path else "no address"
    if parts.scheme != "https":
        return "not https"
    if not _HOST.fullmatch(parts.hostname or "") or "@" in parts.netloc:
        return "no host name of the internet"
    return ""


def links(text: str) -> list[str]:
    """The target of each link in a page's prose."""
    found: list[str] = []

    def seen(target: str) -> str:
        found.append(target)
        return target

    converted(text, seen)
    return found


def diagrams(text: str) -> list[str]:
    """The source of each mermaid block."""
    found: list[str] = []

    def seen(source: str) -> str:
        found.append(source)
        return ""

    converted(text, lambda target: target, seen)
    return found


def diagram_name(source: str) -> str:
    """The name of a diagram's picture: another source, another name."""
    return hashlib.sha256(source.strip().encode()).hexdigest()[:16]


def converted(text: str, link: Callable[[str], str], diagram: Callable[[str], str] = lambda source: "") -> str:
    """The page for Python-Markdown, with each link's target and each mermaid block replaced.

    Code hosts take a list's content by the width of its marker, and a list right below a paragraph; Python-Markdown
    takes four spaces a level, and a blank line first.
    """
    return _Conversion(link, diagram).of(text)


@dataclass
class _Conversion:
    link: Callable[[str], str]
    diagram: Callable[[str], str]
    written: list[str] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    """Of each list item around the present line: the column where its content begins."""

    def of(self, text: str) -> str:
        lines = iter(text.splitlines())
        for line in lines:
            bare = line.lstrip(" ")
            if not bare:
                self.written.append("")
                continue
            self._leave_items(len(line) - len(bare))
            if fence := _FENCE.match(bare):
                self._block(fence["ticks"], fence["language"], bare, len(line) - len(bare), lines)
            elif (item := _ITEM.match(bare)) and not re.fullmatch(r"([-*] *){3,}", bare):
                self._item(item, bare, len(line) - len(bare))
            else:
                self.written.append(_STEP * len(self.widths) + self._prose(bare))
        return "\n".join(self.written) + "\n"

    def _leave_items(self, indent: int) -> None:
        while self.widths and indent < self.widths[-1]:
            self.widths.pop()

    def _item(self, item: re.Match[str], bare: str, indent: int) -> None:
        before = self.written[-1] if self.written else ""
        if before and not self.widths and not _ITEM.match(before) and not before.startswith(" "):
            self.written.append("")
        self.written.append(f"{_STEP * len(self.widths)}{item['marker']} {self._prose(bare[item.end() :])}")
        self.widths.append(indent + item.end())

    def _block(self, ticks: str, language: str, opening: str, indent: int, lines: Iterator[str]) -> None:
        content = []
        for line in lines:
            if line.strip() == ticks:
                break
            content.append(line[min(indent, len(line) - len(line.lstrip(" "))) :])
        if language == "mermaid":
            self.written += ["", self.diagram("\n".join(content)), ""]
            return
        if self.written and self.written[-1]:
            self.written.append("")
        outer = _STEP * len(self.widths)
        self.written += [f"{outer}{line}".rstrip() for line in (opening, *content, ticks)]

    def _prose(self, line: str) -> str:
        def replaced(found: re.Match[str]) -> str:
            return found[0] if found["code"] else f"]({self.link(found['target'])})"

        return _CODE_OR_LINK.sub(replaced, line)
