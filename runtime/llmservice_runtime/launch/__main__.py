"""python -m llmservice_runtime.launch MODULE [RECORD]: import a module, then run it as vLLM's own process.

The arguments of MODULE come as a JSON list over standard input, once the supervisor has them: the import of vLLM takes
seconds, and goes on during the preflight and the fetch. RECORD is the folder of `environments`; with it the processes
that vLLM will start import in parallel too, instead of one after the other.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from llmservice_runtime.bounded_json import Refused, parse
from llmservice_runtime.launch import prepared

MAX_ARGUMENT_BYTES = 1 << 21
"""Linux allows no longer command line."""


def main(module: str, record: str) -> None:
    """Run MODULE as __main__, as `python -m MODULE` would. No return where it exits."""
    prepared.begin(module, record)
    prepared.import_modules(module)
    arguments = _arguments()
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _arguments() -> list[str]:
    """From standard input; this process ends where there are none, as when the supervisor ends before it has them."""
    try:
        given = parse(sys.stdin.buffer.read(MAX_ARGUMENT_BYTES + 1), MAX_ARGUMENT_BYTES)
    except Refused as why:
        sys.exit(f"the supervisor's arguments are missing: {why}")
    if not isinstance(given, list) or not all(isinstance(argument, str) for argument in given):
        sys.exit("the supervisor's arguments are no list of texts")
    return given


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
