"""What mkdocs calls while it builds the site (mkdocs.yml, `hooks`).

Pages stay plain Markdown that a code host shows as well: patterns in the navigation become pages, pages and files of
the repository's root that are linked become part of the site, mermaid blocks become their pictures in docs/diagrams/.
A warning fails the build, which is strict.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.site.pages import (
    PROJECT_PAGES,
    converted,
    diagram_name,
    is_external,
    links,
    malformed,
    resolved,
    site_link,
    site_path,
)

ROOT = Path(__file__).resolve().parents[3]
DIAGRAMS = ROOT / "docs" / "diagrams"
LOG = logging.getLogger("mkdocs.hooks.llmservice")
_SOURCES = {site: source for source, site in PROJECT_PAGES.items()}
_PLACE = '<div class="diagram" data-diagram="{name}"></div>'
_PLACES = re.compile(_PLACE.format(name=r"(\w+)"))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = expanded(config.nav, Path(config.docs_dir))
    return config


def expanded(nav: Any, docs: Path) -> Any:
    """The navigation with each pattern (`runbooks/*.md`) replaced by its pages that are named nowhere else."""
    named = set(_named(nav))

    def pages(entry: Any) -> Sequence[Any]:
        if isinstance(entry, dict):
            return [{title: expand(below) for title, below in entry.items()}]
        if "*" not in entry:
            return [entry]
        found = sorted(path.relative_to(docs).as_posix() for path in docs.glob(entry))
        return [path for path in found if path not in named]

    def expand(entries: Any) -> Any:
        return [page for entry in entries for page in pages(entry)] if isinstance(entries, list) else entries

    return expand(nav)


def _named(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [name for entry in (nav.values() if isinstance(nav, dict) else nav) for name in _named(entry)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for site, source in _SOURCES.items():
        files.append(File.generated(config, site, abs_src_path=str(ROOT / source)))
    for file in [file for file in files if file.is_documentation_page()]:
        page = _source(file)
        for target in links(file.content_string):
            if is_external(target):
                if problem := malformed(target):
                    LOG.warning("%s: link to %s: %s", page, target, problem)
                continue
            linked = resolved(page, target.partition("#")[0])
            if not linked.startswith(("docs/", "..")) and linked not in PROJECT_PAGES:
                _add(files, config, linked)
    return files


def _add(files: Files, config: MkDocsConfig, linked: str) -> None:
    """A file of the repository that a page links to; mkdocs refuses the link where there is none."""
    place, site = ROOT / linked, site_path(linked)
    if place.is_file() and files.get_file_from_path(site) is None:
        files.append(File.generated(config, site, abs_src_path=str(place)))


def _source(file: File) -> str:
    """The page's path in the repository."""
    return _SOURCES.get(file.src_uri, f"docs/{file.src_uri}")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = _source(page.file)
    return converted(
        markdown,
        lambda target: target if is_external(target) else site_link(source, target),
        lambda diagram: _PLACE.format(name=diagram_name(diagram)),
    )


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    def picture(found: re.Match[str]) -> str:
        path = DIAGRAMS / f"{found[1]}.svg"
        if not path.is_file():
            LOG.warning("%s: a diagram has no picture: run `make diagrams`", page.file.src_uri)
            return ""
        return f'<div class="diagram">{path.read_text(encoding="utf-8")}</div>'

    return _PLACES.sub(picture, html)
