"""`python -m benchmarks.sizing`: writes the pages of the sizes of known models; `--check` says whether one is stale."""

import sys

from benchmarks.pages import main
from benchmarks.sizing.page import generated

if __name__ == "__main__":
    sys.exit(main("benchmarks.sizing", __doc__, generated))
