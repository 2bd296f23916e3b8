"""A module that starts processes as vLLM does: an engine by "spawn", that a worker; run by the launch in its tests.

Its argument is JSON: `set` are variables that it sets before it starts its engine, `fails` ends the worker with 3,
`patience` is how long it waits for what must come.
Printed is one line of JSON: what the worker and the engine say of themselves.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

MODULE = __name__
SPAWN = multiprocessing.get_context("spawn")


def about() -> dict[str, Any]:
    """Of this process."""
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "knows": (parent := multiprocessing.parent_process()) is None or parent.is_alive(),
        "variable": os.environ.get("OF_ENGINE", ""),
        "preload": os.environ.get("OF_WORKER", ""),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "main": sys.modules["__main__"].__spec__.name if sys.modules["__main__"].__spec__ else "",
    }


def worker(answers: Connection, event: Any, fails: bool, patience: float) -> None:
    event.wait(patience)
    answers.send(about())
    answers.close()
    sys.exit(3 if fails else 0)


def engine(answers: Connection, fails: bool, patience: float) -> None:
    mine = about()
    os.environ["OF_WORKER"] = "1"
    ours, theirs = SPAWN.Pipe()
    event = SPAWN.Event()
    process = SPAWN.Process(target=worker, args=(theirs, event, fails, patience), name="worker")
    process.start()
    theirs.close()
    event.set()
    answers.send([mine, ours.recv()])
    process.join(patience)
    answers.send(process.exitcode)


def main(argument: str) -> None:
    given = json.loads(argument)
    patience = given["patience"]
    os.environ.update(given.get("set", {}))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (given.get("files", soft), hard))
    # As vLLM's server, this process has threads by then.
    threading.Thread(target=time.sleep, args=(0.1,)).start()
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=engine, args=(theirs, given.get("fails", False), patience), name="engine")
    process.start()
    theirs.close()
    of_engine, of_worker = ours.recv()
    code = ours.recv()
    process.join(patience)
    said = {"pid": os.getpid(), "engine": of_engine, "worker": of_worker, "codes": [process.exitcode]}
    said["codes"].append(code)
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
