"""`llmservice COMMAND`, `kubectl llmservice COMMAND`, `python -m llmservice_cli COMMAND`."""

from __future__ import annotations

import sys


def main() -> int:
    """The entry points are there in every installation; what the commands need is an extra."""
    try:
        from .app import run

        return run()
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("llmservice"):
            raise
        remedy = "pip install '.[cli]' in a checkout of llmservice-operator"
        print(f"error: {missing.name} is not installed\n  what to do: {remedy}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
