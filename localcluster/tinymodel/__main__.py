"""`python -m localcluster.tinymodel OUT_DIR`: put the tiny model there, taught now or taken from the cache."""

import argparse
import sys
from pathlib import Path

from localcluster.tinymodel.cache import cached_model, copy_model


def main(argv: list[str]) -> int:
    """Write the model to the folder that is named."""
    parser = argparse.ArgumentParser(prog="python -m localcluster.tinymodel", description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT_DIR", help="default: only into the cache")
    out: Path | None = parser.parse_args(argv).out
    if out is None:
        print(cached_model(_say))
    else:
        copy_model(out, _say)
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
