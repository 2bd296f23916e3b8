"""python -m monitoring: write the chart's rules and dashboards and the page of alerts; --check: say what is stale."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from monitoring.alerts import GROUPS
from monitoring.dashboards import DASHBOARDS
from monitoring.dashboards.grafana import to_json
from monitoring.page import alerts_page
from monitoring.rules import rule_file

ROOT = Path(__file__).resolve().parents[2]
CHART = Path("charts/llmservice-operator")
RULES = CHART / "files" / "rules.yaml"
DASHBOARD_FOLDER = CHART / "files" / "dashboards"
PAGE = Path("docs/reference/alerts.md")
_KNOB = re.compile(r"^ +# (.+)\n +(\w+): ", re.MULTILINE)


def thresholds() -> Mapping[str, Any]:
    """The chart's defaults of metrics.prometheusRule.thresholds."""
    values = yaml.safe_load((ROOT / CHART / "values.yaml").read_text())
    found: Mapping[str, Any] = values["metrics"]["prometheusRule"]["thresholds"]
    return found


def _meanings() -> Mapping[str, str]:
    """Of each threshold, the comment above it."""
    text = (ROOT / CHART / "values.yaml").read_text()
    lines = text[text.index("    thresholds:") :]
    return {name: comment.rstrip(".") for comment, name in _KNOB.findall(lines) if name in thresholds()}


def generated() -> Mapping[Path, str]:
    """Contents by path in the repository."""
    dashboards = {DASHBOARD_FOLDER / f"{dashboard.uid}.json": to_json(dashboard) for dashboard in DASHBOARDS}
    page = alerts_page(GROUPS, thresholds(), _meanings())
    return {RULES: rule_file(GROUPS), PAGE: page, **dashboards}


def main(argv: list[str]) -> int:
    """1 where --check found a stale file."""
    parser = argparse.ArgumentParser(prog="python -m monitoring", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; name files that are stale")
    check = parser.parse_args(argv).check
    files = generated()
    stale = [path for path, text in files.items() if not (ROOT / path).exists() or (ROOT / path).read_text() != text]
    left_over = {path.relative_to(ROOT) for path in (ROOT / DASHBOARD_FOLDER).glob("*.json")} - files.keys()
    if check:
        for path in sorted([*stale, *left_over]):
            print(f"{path} is stale: run `python -m monitoring`", file=sys.stderr)
        return 1 if stale or left_over else 0
    for path in stale:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(files[path])
    for path in left_over:
        (ROOT / path).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
