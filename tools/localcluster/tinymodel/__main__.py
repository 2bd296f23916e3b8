"""Put a tiny model into OUT_DIR: made now, or taken from the user's cache where an earlier run made it."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from localcluster.tinymodel.cache import cached_model, copy_model, model_folder
from localcluster.tinymodel.config import CHAT, TinyConfig
from localcluster.tinymodel.variants import VARIANTS, Variant

EXAMPLES = """examples:
  python -m localcluster.tinymodel /tmp/tiny                    the chat model that the CPU image carries
  python -m localcluster.tinymodel --list                       what else there is
  python -m localcluster.tinymodel --variant draft              only into the cache; prints the folder
  python -m localcluster.tinymodel --variant adapter-red /tmp/red"""


def main(argv: Sequence[str]) -> int:
    """Write the model to the folder that is named, or print where it lies in the cache."""
    parser = argparse.ArgumentParser(
        prog="python -m localcluster.tinymodel",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT_DIR", help="default: only into the cache")
    parser.add_argument("--variant", choices=VARIANTS, metavar="NAME", help="a variant instead of the chat model")
    parser.add_argument("--list", action="store_true", help="list the variants, and which of them are made already")
    options = parser.parse_args(argv)
    if options.list:
        print(listing())
        return 0
    model: TinyConfig | Variant = VARIANTS[options.variant] if options.variant else CHAT
    if options.out is None:
        print(cached_model(_say, model))
    else:
        copy_model(options.out, _say, model)
    return 0


def listing() -> str:
    """One line for each variant."""
    return "\n".join(
        f"{name:16}{'made' if model_folder(variant).is_dir() else '-':6}{variant.summary}"
        for name, variant in VARIANTS.items()
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
