"""`python -m benchmarks.calibration`: fit, judge, and show; `--write` puts constants and docs page in their place."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from llmservice_planner import constants

from benchmarks.calibration import earlier, report
from benchmarks.calibration.fit import VARIED, fit, points
from benchmarks.calibration.judge import judged, leave_one_model_out
from benchmarks.calibration.records import others, startups

PAGE = Path(__file__).parents[3] / "docs/reference/planner-accuracy.md"
DIGITS = {"sampler_bytes_v0": 1, "sampler_bytes_v1": 1}


def fitted() -> dict[str, float]:
    """The constants as the records have them, rounded."""
    found = fit(points(startups()))
    return {name: round(getattr(found, name).value, DIGITS.get(name, 2)) for name in VARIED}


def _written(module: ModuleType, values: Mapping[str, float]) -> bool:
    """Put the module's share of the values into its source; whether they differ from those before."""
    source = Path(str(module.__file__))
    lines = "".join(f'    "{name}": {values[name]},\n' for name in module.FITTED)
    before = source.read_text()
    text = re.sub(r"(FITTED: dict\[str, float\] = \{)[^}]*\}", rf"\1\n{lines}}}", before)
    source.write_text(text)
    return text != before


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write constants.py and the docs page")
    arguments = parser.parse_args()
    values = fitted()
    if arguments.write and any([_written(constants, values), _written(earlier, values)]):
        # The page is about the new ones, which are read when Python starts.
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.calibration", "--write"])
    page = report.page(leave_one_model_out(list(startups())), [judged(one) for one in others() if one.request])
    if arguments.write:
        PAGE.write_text(page)
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
