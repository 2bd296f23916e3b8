"""python -m llmservice_runtime: install, serve, preflight.

`install` copies this package and llmservice_vllm to a volume of the server container; the init container runs it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import llmservice_vllm

from llmservice_runtime.options import add_options, from_namespace

PACKAGES = (Path(__file__).parent, Path(llmservice_vllm.__file__).parent)
# Byte code goes along: in an image with the same Python, the three processes of a start need not compile it each time.
_LEFT_OUT = shutil.ignore_patterns("extract*", "messages.json")


def install(directory: Path) -> list[Path]:
    """Copy the packages into a directory, each atomically, replacing existing copies. Returns their paths."""
    # In the same directory, where a rename is atomic; other directories may be read-only.
    staging = Path(tempfile.mkdtemp(prefix=".installing-", dir=directory))
    try:
        for package in PACKAGES:
            copy = staging / package.name
            shutil.copytree(package, copy, ignore=_LEFT_OUT, copy_function=shutil.copyfile)
            _readable_for_all(copy)
        return [_replaced(directory / package.name, staging / package.name) for package in PACKAGES]
    finally:
        shutil.rmtree(staging)


def _replaced(target: Path, copy: Path) -> Path:
    if target.exists():
        target.rename(copy.with_name(f"previous-{copy.name}"))
    return copy.rename(target)


def _readable_for_all(folder: Path) -> None:
    """The server may run with another UID than the init container."""
    for path in (folder, *folder.rglob("*")):
        os.chmod(path, 0o755 if path.is_dir() else 0o644)  # noqa: PTH101  # shorter than Path's


EXAMPLES = """\
examples:
  # the init container: copy this package to where the vLLM image's Python finds it
  python -m llmservice_runtime install /llmservice/runtime

  # the server container: everything after -- is passed to vLLM
  python3 -m llmservice_runtime serve --accelerator=cpu -- --model /models/tiny-chat --dtype float32

  # check whether this container can run a model: prints a failure as JSON, or an empty object
  python3 -m llmservice_runtime preflight -- --model /models/tiny-chat

  # the state of a running server
  curl localhost:8081/state
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m llmservice_runtime",
        description="Runs next to vLLM in its container: checks, starts, monitors and drains it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    install = commands.add_parser("install", help="copy this package into a directory", allow_abbrev=False)
    install.add_argument("directory", type=Path)
    for name, words in (
        ("serve", "check, start, monitor and drain vLLM"),
        ("preflight", "check only; print the first failure as JSON"),
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
    """Run a command; returns its exit code. Arguments after the first -- are vLLM's flags."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    ours, flags = arguments[:split], tuple(arguments[split + 1 :])
    namespace = parser().parse_args(ours)
    if namespace.command == "serve":
        from llmservice_runtime.supervisor.processes import hide_environment

        hide_environment()
    # Imported on demand, to keep the supervisor's memory small.
    if namespace.command == "install":
        for package in install(namespace.directory):
            print(f"installed {package}")
        return 0
    if namespace.command == "preflight":
        from llmservice_runtime.preflight.preflight import main as preflight

        return preflight(from_namespace(namespace), flags)
    from llmservice_runtime.supervisor.supervisor import run

    return run(from_namespace(namespace), flags)


def end_when_told() -> None:
    """End on SIGTERM, also as PID 1, for which the kernel ignores signals without a handler.

    Otherwise a pod that ends before the supervisor installs its handlers would keep its GPUs for the grace period.
    `serve` ends with 0, other commands with 143, because they have no result.
    """
    if os.getpid() == 1:
        is_server = sys.argv[1:2] == ["serve"]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0) if is_server else os._exit(128 + signal.SIGTERM))


if __name__ == "__main__":
    end_when_told()
    sys.exit(main(sys.argv[1:]))
