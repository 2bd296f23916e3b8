"""python -m scripts.site [--version 0.1.0] [--into dist/site]

Builds the documentation of this tree as one version of the site, beside those that are in the folder already:

    dist/site/index.html       leads to latest/
    dist/site/versions.json    what the version selector lists
    dist/site/latest           a symbolic link to the newest release, or to dev where there is none
    dist/site/0.1.0/  dev/

The folder is a whole static site; any web server serves it. Nothing is requested from another host.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).resolve().parents[3]
DEV = "dev"
_VERSION = re.compile(rf"{DEV}|\d+\.\d+\.\d+([a-z0-9.-]*[a-z0-9])?")
_INDEX = (
    '<!doctype html><title>LLMService operator</title><link rel="icon" href="latest/assets/images/favicon.png">'
    '<meta http-equiv="refresh" content="0; url=latest/">\n'
)


def newest_first(versions: Sequence[str]) -> list[str]:
    """Releases from the newest down, then the present state of the sources."""
    releases = sorted((version for version in versions if version != DEV), key=Version, reverse=True)
    return releases + [version for version in versions if version == DEV]


def versions_json(versions: Sequence[str]) -> list[dict[str, object]]:
    """The list of material's version selector: the newest release has the alias `latest`."""
    ordered = newest_first(versions)
    return [
        {"version": version, "title": version, "aliases": ["latest"] if version == ordered[0] else []}
        for version in ordered
    ]


def built(site: Path) -> list[str]:
    return [path.name for path in site.iterdir() if path.is_dir() and not path.is_symlink()]


def build(version: str, site: Path) -> int:
    """mkdocs' exit code: a warning is a failure."""
    # Without --quiet, which would also keep warnings from being counted.
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site / version))
    # The theme's notice about mkdocs' next version is no warning of the build.
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False).returncode


def publish(site: Path) -> None:
    """Writes what leads to the versions that are in the folder."""
    listed = versions_json(built(site))
    (site / "versions.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    (site / "index.html").write_text(_INDEX, encoding="utf-8")
    latest = site / "latest"
    latest.unlink(missing_ok=True)
    latest.symlink_to(str(listed[0]["version"]))


def version_argument(text: str) -> str:
    if not _VERSION.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no version: write 1.2.3, or {DEV}")
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.site", description="Builds the documentation's site.")
    parser.add_argument("--version", type=version_argument, default=DEV, help=f"its name in the site (default: {DEV})")
    parser.add_argument("--into", type=Path, default=ROOT / "dist" / "site", help="the folder (default: dist/site)")
    chosen = parser.parse_args(arguments)
    chosen.into.mkdir(parents=True, exist_ok=True)
    if code := build(chosen.version, chosen.into.resolve()):
        return code
    publish(chosen.into)
    print(f"{chosen.into / chosen.version}: look at it with `python3 -m http.server --directory {chosen.into}`")
    return 0


if __name__ == "__main__":
    sys.exit(main())
