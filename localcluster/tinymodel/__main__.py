"""`python -m localcluster.tinymodel OUT_DIR`: make the tiny model there, from the cache where it lies in it."""

import argparse
import sys
from pathlib import Path

from localcluster.tinymodel.cache import copy_model


def main(argv: list[str]) -> int:
    """Write the model to the folder that is named."""
    parser = argparse.ArgumentParser(prog="python -m localcluster.tinymodel", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    out: Path = parser.parse_args(argv).out
    copy_model(out, lambda line: print(line, file=sys.stderr, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
