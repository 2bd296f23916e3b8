"""Pictures of the mermaid blocks of docs/, docs/diagrams/NAME.svg, so that the site needs no script for them.

python -m scripts.site.diagrams            draw those that are missing, remove those of no page
python -m scripts.site.diagrams --check    name them instead; exit code 1 where there are any

Mermaid comes from npm, by version and hash, and draws in the Chromium that is installed; neither is needed to build
the site, only to change a diagram.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from scripts.site.pages import diagram_name, diagrams

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PICTURES = DOCS / "diagrams"
MERMAID = "11.17.2"
INTEGRITY = "sha512-V6K3C8EBdEsPFZXSKMJe6ppQOENxuHARr9GvHX4hh47lAbhMRD9qf4oEK7LoaRQxULMa80/qt5gHO73aCleBBg=="
CHROMIUM = "/usr/bin/chromium"
CONFIG = """{
  startOnLoad: false, deterministicIds: true, securityLevel: "strict", htmlLabels: false, theme: "base",
  fontFamily: "sans-serif", flowchart: {htmlLabels: false, useMaxWidth: true}, themeCSS: `%s`
}"""
COLOURS = """
svg { background: none }
text, .label text, .nodeLabel, tspan { fill: var(--md-default-fg-color, #222) !important }
.node rect, .node path, .node polygon, .node circle, rect.actor, .labelBox {
  fill: var(--md-accent-fg-color--transparent, #eef) !important;
  stroke: var(--md-accent-fg-color, #526cfe) !important }
.cluster rect, .note { fill: var(--md-default-fg-color--lightest, #eee) !important;
  stroke: var(--md-default-fg-color--lighter, #aaa) !important }
.edgeLabel rect, .background, .labelBkg { fill: var(--md-default-bg-color, #fff) !important; opacity: 1 !important }
.flowchart-link, .edgePath path, .messageLine0, .messageLine1, .transition, .relation, .loopLine, .actor-line {
  stroke: var(--md-default-fg-color--light, #666) !important }
marker path, .marker, .arrowheadPath { fill: var(--md-default-fg-color--light, #666) !important;
  stroke: var(--md-default-fg-color--light, #666) !important }
""".replace("\n", " ")
"""The site's own colours, dark and light; alone, the second value of each."""


def sources() -> Mapping[str, str]:
    """Each diagram of a page of docs/, by its picture's name."""
    pages = sorted(DOCS.rglob("*.md"))
    return {diagram_name(source): source for page in pages for source in diagrams(page.read_text(encoding="utf-8"))}


def stale(wanted: Iterable[str]) -> list[str]:
    """The pictures that are missing, and those that belong to no page."""
    return sorted({path.stem for path in PICTURES.glob("*.svg")} ^ set(wanted))


def mermaid(folder: Path) -> str:
    """The script of the pinned version, from npm; raises ValueError where its archive is another one."""
    subprocess.run(["npm", "pack", "--silent", f"mermaid@{MERMAID}"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    archive = folder / f"mermaid-{MERMAID}.tgz"
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != INTEGRITY:
        raise ValueError(f"mermaid {MERMAID} has the hash sha512-{digest}, not {INTEGRITY}")
    with tarfile.open(archive) as files:
        script = files.extractfile("package/dist/mermaid.min.js")
        assert script is not None
        return script.read().decode()


def drawn(wanted: Mapping[str, str], script: str) -> Mapping[str, str]:
    """The SVG of each diagram."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = browser.new_page()
            page.set_content("<body></body>")
            page.add_script_tag(content=script)
            page.evaluate(f"mermaid.initialize({CONFIG % COLOURS})")
            return {name: _svg(page.evaluate(_RENDER, [f"d{name}", source])) for name, source in wanted.items()}
        finally:
            browser.close()


_PATH = re.compile(r'\sd="[^"]*"')
_FRACTION = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_RENDER = "async ([id, source]) => (await mermaid.render(id, source)).svg"


def _svg(text: str) -> str:
    """In one line, with tenths of a pixel in paths."""

    def shorter(path: re.Match[str]) -> str:
        return _FRACTION.sub(lambda number: f"{float(number[0]):.1f}", path[0])

    return _PATH.sub(shorter, text.replace("\n", " ")).strip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.site.diagrams", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="draw nothing; name what is stale")
    wanted = sources()
    changed = stale(wanted)
    if parser.parse_args().check:
        for name in changed:
            print(f"docs/diagrams/{name}.svg is missing or of no page: run `make diagrams`", file=sys.stderr)
        return 1 if changed else 0
    missing = {name: wanted[name] for name in changed if name in wanted}
    PICTURES.mkdir(exist_ok=True)
    if missing:
        with tempfile.TemporaryDirectory() as folder:
            for name, svg in drawn(missing, mermaid(Path(folder))).items():
                (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")
    for name in set(changed) - set(wanted):
        (PICTURES / f"{name}.svg").unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
