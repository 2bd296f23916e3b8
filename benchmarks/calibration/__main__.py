"""`python -m benchmarks.calibration`: fit, judge, and show; `--write` puts constants and docs page in their place."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from llmservice_operator.planner import constants

from benchmarks.calibration import report
from benchmarks.calibration.fit import VARIED, fit, points
from benchmarks.calibration.judge import judged, leave_one_model_out
from benchmarks.calibration.records import others, startups

PAGE = Path(__file__).parents[2] / "docs/reference/planner-accuracy.md"
DIGITS = {"sampler_bytes_v0": 1, "sampler_bytes_v1": 1}


def fitted() -> dict[str, float]:
    """The constants as the records have them, rounded."""
    found = fit(points(startups()))
    return {name: round(getattr(found, name).value, DIGITS.get(name, 2)) for name in VARIED}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write constants.py and the docs page")
    arguments = parser.parse_args()
    values = fitted()
    if arguments.write:
        source = Path(constants.__file__)
        lines = "".join(f'    "{name}": {value},\n' for name, value in values.items())
        text = re.sub(r"(FITTED: dict\[str, float\] = \{)[^}]*\}", rf"\1\n{lines}}}", source.read_text())
        changed = text != source.read_text()
        source.write_text(text)
        if changed:
            # The page is about the new ones, which are read when Python starts.
            os.execv(sys.executable, [sys.executable, "-m", "benchmarks.calibration", "--write"])
    page = report.page(leave_one_model_out(list(startups())), [judged(one) for one in others() if one.request])
    if arguments.write:
        PAGE.write_text(page)
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
