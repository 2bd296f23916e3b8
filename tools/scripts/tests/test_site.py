"""The documentation's site builds without a warning, with every page, and a browser asks no other host for it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright
from playwright.sync_api import TimeoutError as BrowserTimeout

from scripts.site import diagrams
from scripts.site.__main__ import main, newest_first, publish, versions_json
from scripts.site.hooks import expanded
from scripts.site.pages import converted, github_slug, malformed, site_link
from tests.support.documents import DOCS, PAGES, ROOT
from tests.support.http_servers import threaded

VERSION = "9.8.7"
ENVIRONMENT = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}

LISTS = {
    "nested by the marker's width": ("- a\n  - b\n    - c\n", "- a\n    - b\n        - c\n"),
    "a block inside an item": (
        "1. a\n\n   ```sh\n   b \\\n     c\n   ```\n2. d\n",
        "1. a\n\n    ```sh\n    b \\\n      c\n    ```\n2. d\n",
    ),
    "right below a paragraph": ("a:\n- b\n- c\n", "a:\n\n- b\n- c\n"),
    "after a list": ("- a\n\nb\n", "- a\n\nb\n"),
    "code that looks like a list": ("```yaml\na:\n- b\n```\n", "```yaml\na:\n- b\n```\n"),
    "a rule is no item": ("a\n\n---\n\n* * *\n", "a\n\n---\n\n* * *\n"),
}
LINKS = {
    "a page beside": ("docs/a.md", "b.md#c", "b.md#c"),
    "a page of another folder": ("docs/serving/a.md", "../cli/b.md", "../cli/b.md"),
    "a heading of the page": ("docs/a.md", "#b", "#b"),
    "a page of the root": ("docs/serving/a.md", "../../CONTRIBUTING.md#x", "../project/contributing.md#x"),
    "from a page of the root": ("CONTRIBUTING.md", "docs/serving/a.md", "../serving/a.md"),
    "a file of the repository": ("docs/serving/a.md", "../../examples/b.yaml", "../files/examples/b.yaml"),
}
EXTERNAL = {
    "https://docs.vllm.ai": "",
    "https://docs.vllm.ai/en/latest/a.html#b": "",
    "mailto:someone@example.com": "",
    "mailto:someone": "no address",
    "http://docs.vllm.ai": "not https",
    "ftp://docs.vllm.ai": "not https",
    "javascript:alert(1)": "not https",
    "https://localhost/a": "no host name of the internet",
    "https://docs_vllm.ai": "no host name of the internet",
    "https://user@docs.vllm.ai": "no host name of the internet",
    "https:///a": "no host name of the internet",
}


@pytest.mark.parametrize(("given", "wanted"), LISTS.values(), ids=LISTS)
def test_lists_are_those_of_a_code_host(given: str, wanted: str) -> None:
    assert converted(given, lambda target: target) == wanted


@pytest.mark.parametrize(("page", "target", "wanted"), LINKS.values(), ids=LINKS)
def test_links_of_the_repository_are_links_of_the_site(page: str, target: str, wanted: str) -> None:
    assert site_link(page, target) == wanted


def test_links_in_code_are_text() -> None:
    text = "[a](b.md) `[a](b.md)`\n\n```sh\n[a](b.md)\n```\n"
    assert converted(text, lambda target: "x") == "[a](x) `[a](b.md)`\n\n```sh\n[a](b.md)\n```\n"


@pytest.mark.parametrize(("target", "problem"), EXTERNAL.items())
def test_the_form_of_external_links(target: str, problem: str) -> None:
    assert malformed(target) == problem


def test_anchors_are_those_of_a_code_host() -> None:
    assert github_slug("Who reads `/metrics`, and how?", "-") == "who-reads-metrics-and-how"


def test_patterns_of_the_navigation(tmp_path: Path) -> None:
    (tmp_path / "serving").mkdir()
    for name in ("a", "b", "index"):
        (tmp_path / "serving" / f"{name}.md").touch()
    nav = [{"Serving": ["serving/index.md", "serving/*.md"]}, {"Other": "other.md"}]
    assert expanded(nav, tmp_path) == [
        {"Serving": ["serving/index.md", "serving/a.md", "serving/b.md"]},
        {"Other": "other.md"},
    ]


def test_the_newest_release_is_latest() -> None:
    assert newest_first(["0.9.0", "dev", "0.10.0"]) == ["0.10.0", "0.9.0", "dev"]
    assert [(row["version"], row["aliases"]) for row in versions_json(["dev", "0.9.0", "0.10.0"])] == [
        ("0.10.0", ["latest"]),
        ("0.9.0", []),
        ("dev", []),
    ]
    assert versions_json(["dev"])[0]["aliases"] == ["latest"]


@pytest.mark.parametrize("version", ["latest", "../up", "1", "v1.2.3", "1.2.3/a"])
def test_a_version_is_a_folder_of_the_site(version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version", version, "--into", str(tmp_path)])
    assert "is no version" in capsys.readouterr().err


def test_each_diagram_has_its_picture() -> None:
    assert diagrams.stale(diagrams.sources()) == [], "run `make diagrams`"


def test_what_is_wrong_fails_the_build(tmp_path: Path) -> None:
    """Each kind of mistake is named, so that the strict build of the real pages means something."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(
        "# A\n\n[a](missing.md) [b](#nowhere) [c](http://example.com) [d](../missing.yaml)\n\n"
        "```mermaid\nflowchart\n```\n"
    )
    (docs / "lost.md").write_text("# In no navigation\n")
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[0]
    text = text.replace("docs_dir: docs", f"docs_dir: {docs}").replace("[tools/scripts/", f"[{ROOT}/tools/scripts/")
    (tmp_path / "mkdocs.yml").write_text(f"{text}\nnav: [index.md, gone.md]\n")
    command = (sys.executable, "-m", "mkdocs", "build", "-f", str(tmp_path / "mkdocs.yml"), "-d", str(tmp_path / "out"))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode != 0
    for named in (
        "missing.md",
        "#nowhere",
        "http://example.com: not https",
        "missing.yaml",
        "a diagram has no picture",
        "lost.md",
        "gone.md",
    ):
        assert re.search(f"WARNING.*{re.escape(named)}|^  - {named}$", done.stderr, re.MULTILINE), (named, done.stderr)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of this tree, as `make docs VERSION=9.8.7` builds it, beside an older one."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "0.0.1").mkdir()
    command = (sys.executable, "-m", "scripts.site", "--version", VERSION, "--into", str(folder))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    """mkdocs warns of a page in no navigation, and a warning fails the build."""
    pages = [path for path in PAGES if path.is_relative_to(DOCS)]
    missing = [
        page
        for page in pages
        if not (site / VERSION / page.relative_to(DOCS).with_suffix("") / "index.html").is_file()
        and not (page.name == "index.md" and (site / VERSION / page.relative_to(DOCS).parent / "index.html").is_file())
    ]
    assert missing == []
    assert (site / VERSION / "project" / "changelog" / "index.html").is_file()
    assert (site / VERSION / "files" / "charts" / "llmservice-operator" / "values.yaml").is_file()


def test_versions_lie_beside_each_other(site: Path) -> None:
    listed = json.loads((site / "versions.json").read_text())
    assert [row["version"] for row in listed] == [VERSION, "0.0.1"]
    assert (site / "latest").readlink() == Path(VERSION)
    shutil.copytree(site / "0.0.1", site / "10.0.0")
    publish(site)
    assert (site / "latest").readlink() == Path("10.0.0")
    (site / "10.0.0").rmdir()
    publish(site)


def test_no_page_shows_marks_of_markdown(site: Path) -> None:
    """A list or a block that Python-Markdown did not recognise is left as text."""
    broken = [
        (path.relative_to(site).as_posix(), found[0])
        for path in (site / VERSION).rglob("*.html")
        for found in re.finditer(r"<p>[^<]*(?:```|\n[-*] )[^<]*", path.read_text(encoding="utf-8"))
    ]
    assert broken == []


@pytest.fixture(scope="module")
def browser_page(site: Path) -> Iterator[tuple[Page, list[str]]]:
    """A page at the site's home, and what it asked of other hosts or reported as an error."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Chromium (Debian's package chromium)")

    class Files(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(site))

    with sync_playwright() as playwright, threaded(Files) as port:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page, home = browser.new_page(), f"http://127.0.0.1:{port}/"
        page.set_default_timeout(120_000)
        problems: list[str] = []
        page.on("request", lambda sent: problems.extend([] if sent.url.startswith(home) else [sent.url]))
        page.on(
            "console", lambda said: problems.extend([f"{said.text} {said.location}"] if said.type == "error" else [])
        )
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(home)
        page.wait_for_url("**/latest/")
        yield page, problems
        browser.close()


def test_search_finds_without_another_host(browser_page: tuple[Page, list[str]]) -> None:
    page, problems = browser_page
    first = page.locator(".md-search-result__item h1").first
    for _ in range(20):  # until the page's script runs, which overlooks what was typed before
        page.locator("input.md-search__input").fill("")
        page.locator("input.md-search__input").press_sequentially("draining")
        with suppress(BrowserTimeout):
            first.wait_for(timeout=6_000)
            break
    assert first.inner_text() == "Draining"
    assert page.locator(".md-version__link").first.inner_text().startswith(VERSION)
    assert problems == []


def test_diagrams_are_drawn(browser_page: tuple[Page, list[str]]) -> None:
    page, problems = browser_page
    page.goto(f"{page.url.partition('/latest/')[0]}/latest/architecture/")
    drawn = page.locator(".diagram svg")
    assert drawn.count() == 2
    assert all(drawn.nth(number).is_visible() for number in range(2))
    assert "reconcile.py" in (drawn.first.text_content() or "")
    assert page.locator(".mermaid").count() == 0
    assert problems == []
