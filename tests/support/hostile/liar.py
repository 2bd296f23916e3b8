"""Stands in for the supervisor in a tenant's pod: healthy to the kubelet, hostile to whoever asks for its state.

Standard library only: it is copied over the supervisor by an init container of the tenant's, which may do so in its own
pod. LIE names what it answers; `die` ends at once with a hostile termination message.
"""

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from llmservice_runtime import contract

TRUE: dict[str, object] = {
    "version": 1,
    "phase": "Loading",
    "started": True,
    "ready": True,
    "progress": "loading",
    "phaseSeconds": 1.0,
    "modelNames": ["liar"],
    "measured": {},
}
FETCHING = TRUE | {"started": False, "phase": "Fetching"}
DEEP = "[" * 4000
LONE = "\\ud800"


def transfer(**values: object) -> dict[str, object]:
    known = {"artifact": "model", "step": "Downloading", "files": 1, "filesDone": 0, "bytes": 10, "bytesDone": 1}
    return FETCHING | {"transfer": known | values}


def flipping(number: int) -> dict[str, object]:
    adapters = [{"name": f"a{n}", "loaded": False, "message": f"no {number}"} for n in range(64)]
    return TRUE | {"adapters": adapters, "adaptersHash": os.environ.get("ADAPTERS_HASH", "x")}


def phases(number: int) -> dict[str, object]:
    return FETCHING | {"phase": ("Fetching", "Loading", "Smoke")[number % 3], "progress": "p" * 1000 + str(number)}


LIES: Mapping[str, Callable[[int], str]] = {
    "huge number": lambda n: json.dumps(transfer(bytesDone=1)).replace('"bytesDone": 1', '"bytesDone": 1e400'),
    "huge integer": lambda n: json.dumps(transfer(bytesDone=1)).replace('"bytesDone": 1', '"bytesDone": ' + "9" * 9999),
    "text for a number": lambda n: json.dumps(FETCHING | {"usualStartSeconds": "soon", "startBudgetSeconds": "x"}),
    "not a number": lambda n: json.dumps(FETCHING | {"phaseSeconds": float("nan"), "startBudgetSeconds": float("inf")}),
    "lone surrogate": lambda n: json.dumps(FETCHING).replace('"loading"', f'"{LONE}"'),
    "deep": lambda n: DEEP,
    "wrong types": lambda n: json.dumps(FETCHING | {"modelNames": 5, "measured": [1], "adapters": {"a": 1}}),
    "adapters that flip": lambda n: json.dumps(flipping(n)),
    "phases that flip": lambda n: json.dumps(phases(n)),
    "large": lambda n: json.dumps(FETCHING | {"progress": "x" * 20_000_000}),
    "not JSON": lambda n: "\x00\xff" * 1000,
}
"""Each makes the body of the n-th answer."""


class Answer(BaseHTTPRequestHandler):
    count = itertools.count()
    lie = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path != contract.STATE_PATH:
            # Never started: the operator goes on asking.
            is_started = path != contract.STARTUP_PATH or self.lie == "adapters that flip"
            self.send_response(200 if is_started else 503)
            self.end_headers()
            return
        if self.lie == "slow":
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            for _ in range(1000):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.5)
            return
        if self.lie == "redirect":
            self.send_response(302)
            self.send_header("Location", "https://10.96.0.1/api/v1/secrets")
            self.end_headers()
            return
        body = LIES[self.lie](next(self.count)).encode("utf-8", "surrogatepass")
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def main() -> None:
    # Of process 1 the kernel ignores a SIGTERM without a handler, for the pod's whole grace period.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    lie = os.environ["LIE"]
    if lie.startswith("die"):
        last = {"die deep": DEEP, "die drain": '{"version":1,"drain":{"cut":1e400}}', "die failure": failure()}[lie]
        with Path(contract.TERMINATION_LOG).open("w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(last[:4096])
        sys.exit(0 if lie == "die drain" else 1)
    Answer.lie = lie
    for port in {contract.STATE_PORT, contract.HTTP_PORT}:
        server = ThreadingHTTPServer(("", port), Answer)
        threading.Thread(target=server.serve_forever).start()


def failure() -> str:
    return json.dumps({"version": 1, "reason": "EngineDied", "message": LONE, "remedy": "r", "exitCode": 1e308 * 10})


if __name__ == "__main__":
    main()
