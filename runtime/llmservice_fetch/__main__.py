"""python -m llmservice_fetch: fetch, serve, inspect."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from llmservice_runtime.__main__ import end_when_told
from llmservice_runtime.contract import ARTIFACTS_DIR, FETCH_SOCKET, MODELS_DIR

EXAMPLES = """\
examples:
  # as a pod does before vLLM starts: fetch once, resume, verify, link; here into a folder of your own
  python -m llmservice_fetch fetch --fetch=model=hf://ORG/NAME@REVISION --cache=/data --links=/data/links
  AWS_ENDPOINT_URL_S3=http://minio:9000 python -m llmservice_fetch fetch --fetch=model=s3://BUCKET/PREFIX

  # the fetch container: fetch the same on request of the pod's supervisor
  python -m llmservice_fetch serve --fetch=model=hf://ORG/NAME --cache=/data --links=/data/links --socket=/data/socket

  # inspect a model by its config.json and the headers of its weights, without downloading them
  python -m llmservice_fetch inspect --model=hf://ORG/NAME@REVISION
  python -m llmservice_fetch inspect --model=/models/tiny-chat
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m llmservice_fetch",
        description="Fetches models from hubs and buckets into a cache, or inspects them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_fetch(commands)
    _add_serve(commands)
    _add_inspect(commands)
    return top


def _add_fetch(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "fetch",
        help="fetch models into the cache, with progress as JSON",
        allow_abbrev=False,
        usage="python -m llmservice_fetch fetch --fetch=NAME=URI [options] [-- <vLLM flags>]",
        description="Credentials come from the environment: HF_TOKEN, HF_ENDPOINT; AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, "
        "AWS_ENDPOINT_URL_S3; GOOGLE_*; AZURE_*. A killed fetch is resumed; concurrent fetches into one cache "
        "download everything once.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument(
        "--fetch", action="append", required=True, metavar="NAME=URI", help="hf://, s3://, gs:// or az://; repeatable"
    )
    _add_places(command)
    _add_cache_options(command)
    command.add_argument("--weights", default="auto", help="what spec.precision.weights asks for; to be checked")
    command.add_argument("--context-extension", metavar="METHOD:FACTOR[:ORIGINAL]", help="to be checked")


def _add_places(command: argparse.ArgumentParser) -> None:
    command.add_argument("--cache", type=Path, default=Path(MODELS_DIR), help="folder that holds what was fetched")
    command.add_argument("--links", type=Path, default=Path(ARTIFACTS_DIR), help="folder for a link called NAME")


def _add_cache_options(command: argparse.ArgumentParser) -> None:
    """The options of spec.model.cache, as rendered by the operator (manifests/pod_template.py)."""
    command.add_argument(
        "--verify",
        choices=("size", "hash"),
        default="size",
        help="how cached files are compared with the origin before use; hash reads every file",
    )
    command.add_argument("--pod", default=os.uname().nodename, metavar="NAME", help="name of this pod")
    command.add_argument(
        "--service", default="", metavar="NAME", help="LLMService of this pod; without it nothing is pruned"
    )
    command.add_argument(
        "--prune-after-hours",
        type=_hours,
        default=720,
        metavar="HOURS",
        help="how long the cache keeps revisions that no pod serves and no service with pods may return to",
    )


def _hours(text: str) -> int:
    if not 1 <= int(text) <= 87_600:
        raise argparse.ArgumentTypeError("must be from 1 to 87600")
    return int(text)


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "serve",
        help="fetch the named artifacts on request over a unix socket",
        allow_abbrev=False,
        description="Runs next to a server that has no credentials and cannot write the cache. Each request runs in "
        "a child process, `fetch`, with the environment of this one.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument(
        "--fetch", action="append", default=[], metavar="NAME=URI", help="may be requested; repeatable"
    )
    command.add_argument("--adapters-file", type=Path, help="a list of LoRA adapters, which may be requested too")
    command.add_argument("--socket", type=Path, default=Path(FETCH_SOCKET), help="where to listen")
    _add_places(command)
    _add_cache_options(command)


def _add_inspect(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "inspect",
        help="print facts about a model as JSON, without its weights",
        allow_abbrev=False,
        description="Reads config.json and the headers of the safetensors files. Credentials come from the "
        "environment, as for fetch. Ends with 0 when it has a result, which may be a failure.",
    )
    command.add_argument("--model", required=True, metavar="URI", help="hf://, s3://, a folder or a config.json")
    command.add_argument("--termination-log", type=Path, metavar="PATH", help="write the result there as well")


def main(arguments: Sequence[str]) -> int:
    """Run a command; its exit code. Arguments after the first -- are vLLM's flags."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    ours, flags = arguments[:split], tuple(arguments[split + 1 :])
    namespace = parser().parse_args(ours)
    if namespace.command == "inspect":
        from llmservice_fetch.inspection import main as inspect

        return inspect(namespace.model, namespace.termination_log)
    from llmservice_runtime.supervisor.processes import hide_environment

    hide_environment()
    if namespace.command == "serve":
        from llmservice_fetch.serve import Allowed, serve
        from llmservice_fetch.uses import renew

        places = (f"--cache={namespace.cache}", f"--links={namespace.links}")
        cache = (f"--verify={namespace.verify}", f"--prune-after-hours={namespace.prune_after_hours}")
        owner = (f"--service={namespace.service}", f"--pod={namespace.pod}")
        command = (sys.executable, "-m", "llmservice_fetch", "fetch", *places, *cache, *owner)
        allowed = Allowed(tuple(namespace.fetch), namespace.adapters_file)
        return serve(namespace.socket, allowed, command, os.environ, lambda: renew(namespace.cache, namespace.pod))
    from llmservice_fetch.command import FetchOptions
    from llmservice_fetch.command import main as fetch

    extension = namespace.context_extension
    return fetch(
        FetchOptions(
            tuple(namespace.fetch),
            namespace.cache,
            namespace.links,
            namespace.weights,
            extension,
            flags,
            namespace.verify,
            namespace.service,
            namespace.prune_after_hours,
            namespace.pod,
        )
    )


if __name__ == "__main__":
    end_when_told()
    sys.exit(main(sys.argv[1:]))
