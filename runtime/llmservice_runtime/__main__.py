"""python -m llmservice_runtime: install, serve, preflight, fetch, inspect."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from llmservice_runtime.contract import ARTIFACTS_DIR, MODELS_DIR
from llmservice_runtime.options import add_options, from_namespace

EXAMPLES = """\
examples:
  # what the init container does: put this package where the vLLM image's Python finds it
  python -m llmservice_runtime install /llmservice/runtime

  # what the server's container does: everything after -- goes to vLLM as it is
  python3 -m llmservice_runtime serve --accelerator=cpu -- --model /models/tiny-chat --dtype float32

  # is this container able to run that model? prints JSON; an empty object when nothing is wrong
  python3 -m llmservice_runtime preflight -- --model /models/tiny-chat

  # what serve does before vLLM: fetch once, resume, verify, link; by hand into a folder of your own
  python3 -m llmservice_runtime fetch --fetch=model=hf://ORG/NAME@REVISION --cache=/data --links=/data/links
  AWS_ENDPOINT_URL_S3=http://minio:9000 python3 -m llmservice_runtime fetch --fetch=model=s3://BUCKET/PREFIX

  # what a model is made of, by its config.json and the headers of its weights, which stay where they are
  python3 -m llmservice_runtime inspect --model=hf://ORG/NAME@REVISION
  python3 -m llmservice_runtime inspect --model=/models/tiny-chat

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
    _add_fetch(commands)
    _add_inspect(commands)
    return top


def _add_fetch(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "fetch",
        help="fetch models into the cache, and say in JSON how far it is",
        allow_abbrev=False,
        usage="python -m llmservice_runtime fetch --fetch=NAME=URI [options] [-- <vLLM flags>]",
        description="Credentials come from the environment: HF_TOKEN, HF_ENDPOINT; AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL_S3. A fetch that was killed goes on "
        "where it stopped; several at once on one cache fetch everything once.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument(
        "--fetch", action="append", required=True, metavar="NAME=URI", help="hf:// or s3://; repeatable"
    )
    command.add_argument(
        "--ask-for-credentials",
        action="store_true",
        help="as serve does it: those variables come by a socket, which is the standard input",
    )
    command.add_argument("--cache", type=Path, default=Path(MODELS_DIR), help="folder that holds what was fetched")
    command.add_argument("--links", type=Path, default=Path(ARTIFACTS_DIR), help="folder for a link called NAME")
    command.add_argument("--weights", default="auto", help="what spec.precision.weights asks for; to be checked")
    command.add_argument("--context-extension", metavar="METHOD:FACTOR[:ORIGINAL]", help="to be checked")


def _add_inspect(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "inspect",
        help="say in JSON what a model is made of, without its weights",
        allow_abbrev=False,
        description="Reads config.json and the headers of the safetensors files. Credentials come from the "
        "environment, as for fetch. Ends with 0 when it came to a conclusion, which may be why there are no facts.",
    )
    command.add_argument("--model", required=True, metavar="URI", help="hf://, s3://, a folder or a config.json")
    command.add_argument("--termination-log", type=Path, metavar="PATH", help="write the result there as well")


def main(arguments: Sequence[str]) -> int:
    """Split at the first --, since what follows is vLLM's."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    ours, flags = arguments[:split], tuple(arguments[split + 1 :])
    namespace = parser().parse_args(ours)
    if namespace.command in ("serve", "fetch"):
        from llmservice_runtime.processes import hide_environment

        hide_environment()
    if namespace.command == "fetch" and namespace.ask_for_credentials:
        from llmservice_runtime.fetch import handover

        handover.take(os.environ)
    # Imported where needed: the supervisor's memory counts.
    if namespace.command == "install":
        from llmservice_runtime.install import install

        print(f"installed {install(namespace.directory)}")
        return 0
    if namespace.command == "fetch":
        from llmservice_runtime.fetch.command import Wanted
        from llmservice_runtime.fetch.command import main as fetch

        extension = namespace.context_extension
        return fetch(
            Wanted(tuple(namespace.fetch), namespace.cache, namespace.links, namespace.weights, extension, flags)
        )
    if namespace.command == "inspect":
        from llmservice_runtime.inspection import main as inspect

        return inspect(namespace.model, namespace.termination_log)
    if namespace.command == "preflight":
        from llmservice_runtime.preflight import main as preflight

        return preflight(from_namespace(namespace), flags)
    from llmservice_runtime.supervisor import run

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
