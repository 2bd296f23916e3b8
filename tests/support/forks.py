"""Processes of the fetch command that begin with its modules imported: an import costs more than most of its tests.

    python -m tests.support.forks

Reads a line of JSON for each process, forks, and answers with its exit code once it has ended.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A process of `python -m llmservice_fetch` from start to end."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        asked = [list(arguments), dict(environment), str(out), str(err), str(Path.cwd())]
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())


@cache
def _server() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.forks"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.communicate)  # which closes its input, and so ends it
    return server


def _serve() -> None:
    import llmservice_fetch.buckets
    import llmservice_fetch.command
    import llmservice_fetch.hub  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(*json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(arguments: list[str], environment: dict[str, str], out: str, err: str, folder: str) -> None:
    """The process that was asked for, which ends here."""
    from llmservice_fetch.__main__ import main

    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    code: object = 1
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    _serve()
