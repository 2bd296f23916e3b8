"""python -m llmservice_runtime: install, serve, preflight."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from llmservice_runtime.options import add_options, from_namespace

EXAMPLES = """\
examples:
  # what the init container does: put this package where the vLLM image's Python finds it
  python -m llmservice_runtime install /llmservice/runtime

  # what the server's container does: everything after -- goes to vLLM as it is
  python3 -m llmservice_runtime serve --accelerator=cpu -- --model /models/tiny-chat --dtype float32

  # is this container able to run that model? prints JSON; an empty object when nothing is wrong
  python3 -m llmservice_runtime preflight -- --model /models/tiny-chat

  # how a running server is doing
  curl localhost:8081/state
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m llmservice_runtime",
        description="Runs beside vLLM in its container: checks, starts, watches and drains it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    install = commands.add_parser("install", help="copy this package into a directory", allow_abbrev=False)
    install.add_argument("directory", type=Path)
    for name, words in (
        ("serve", "check, start, watch and drain a vLLM"),
        ("preflight", "check only, and say in JSON what is wrong"),
    ):
        command = commands.add_parser(
            name,
            help=words,
            allow_abbrev=False,
            usage=f"python -m llmservice_runtime {name} [options] -- <vLLM flags>",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        add_options(command)
    return top


def main(arguments: Sequence[str]) -> int:
    """Split at the first --, since what follows is vLLM's."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    ours, flags = arguments[:split], tuple(arguments[split + 1 :])
    namespace = parser().parse_args(ours)
    if namespace.command == "serve":
        from llmservice_runtime.supervisor.processes import hide_environment

        hide_environment()
    # Imported where needed: the supervisor's memory counts.
    if namespace.command == "install":
        from llmservice_runtime.install import install

        print(f"installed {install(namespace.directory)}")
        return 0
    if namespace.command == "preflight":
        from llmservice_runtime.preflight.preflight import main as preflight

        return preflight(from_namespace(namespace), flags)
    from llmservice_runtime.supervisor.supervisor import run

    return run(from_namespace(namespace), flags)


def end_when_told() -> None:
    """The kernel keeps a signal without a handler from a container's first process.

    Until the supervisor has its own handler, and for what never has one, a pod that is told to end would stay for all
    of its grace period, which is minutes, and with it its GPUs. What was to come to a conclusion has none, and says so.
    """
    if os.getpid() == 1:
        is_server = sys.argv[1:2] == ["serve"]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0) if is_server else os._exit(128 + signal.SIGTERM))


if __name__ == "__main__":
    end_when_told()
    sys.exit(main(sys.argv[1:]))
