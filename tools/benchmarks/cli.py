"""CPU seconds of `llmservice` commands, as multiples of those of `python -c "import pydantic"`.

No cluster: an API server of this process answers with ten services. User and system time of each process are counted,
and the least of several runs, in turns, so that a busy machine hides little.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from llmservice_api.constants import LLMSERVICE

from tests.support.kubeconfig import kubeconfig

ROOT = Path(__file__).parents[2]
PACKAGES = ("operator", "runtime", "cli", "tools", ".")
RUNS = 7
UNIT = "import pydantic"
COMMANDS = ("--help", "status -A", "wait service-0 --timeout 0", "top --once --interval 0.01")
LIMITS = {"status -A": 3.0}
"""Multiples that this must stay below."""


def service(number: int) -> dict[str, object]:
    """One that is ready, as the API server has it."""
    metadata = {"namespace": "default", "name": f"service-{number}", "uid": f"u{number}", "generation": 1}
    ready = {"type": "Ready", "status": "True", "reason": "RolledOut", "message": "", "observedGeneration": 1}
    status = {"observedGeneration": 1, "ready": "1/1", "gpus": 1, "conditions": [ready]}
    return {"metadata": metadata, "spec": {"model": {"uri": "hf://org/model"}}, "status": status}


SERVICES = [service(number) for number in range(10)]


class Answer(BaseHTTPRequestHandler):
    """Lists of services have these, other lists nothing."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        items = SERVICES if path.endswith(f"/{LLMSERVICE.plural}") else []
        items = items[:1] if "fieldSelector" in query else items
        body = json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@contextmanager
def api_server() -> Iterator[str]:
    """A kubeconfig that leads to it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        yield str(kubeconfig(Path(folder), {"token": "t"}, server=f"http://127.0.0.1:{server.server_port}"))
    server.shutdown()
    server.server_close()


def cpu(words: Sequence[str], environment: Mapping[str, str]) -> float:
    """Of one process of Python, in seconds. CalledProcessError where it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], env=environment, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(checkouts: Sequence[Path], runs: int, bytecode: str) -> Mapping[Path, Mapping[str, float]]:
    """The least CPU seconds of UNIT and of each command, by the checkout whose code runs."""
    least = {checkout: dict.fromkeys((UNIT, *COMMANDS), float("inf")) for checkout in checkouts}
    with api_server() as config:
        common = {**os.environ, "KUBECONFIG": config, "PYTHONPYCACHEPREFIX": bytecode}
        common.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(runs + 1):  # the first one writes byte code, and is never the least
            for checkout, found in least.items():
                path = os.pathsep.join(str(checkout / package) for package in PACKAGES)
                environment = {**common, "PYTHONPATH": path}
                found[UNIT] = min(found[UNIT], cpu(["-c", UNIT], environment))
                for command in COMMANDS:
                    seconds = cpu(["-m", "llmservice_cli", *command.split()], environment)
                    found[command] = min(found[command], seconds)
    return least


def main() -> int:
    """1 where a command is above its limit."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cli",
        description=__doc__,
        epilog="example: python -m benchmarks.cli --old ../other-checkout --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"of each command (default {RUNS})")
    parser.add_argument("--old", type=Path, metavar="CHECKOUT", help="measure another checkout beside this one")
    parser.add_argument("--json", action="store_true", help="figures for a program")
    given = parser.parse_args()
    checkouts = {"now": ROOT, **({"old": given.old.resolve()} if given.old else {})}
    with tempfile.TemporaryDirectory() as bytecode:
        seconds = measure([*checkouts.values()], given.runs, bytecode)
    unit = min(found[UNIT] for found in seconds.values())
    figures = {
        command: {
            name: {
                "milliseconds": round(seconds[path][command] * 1000, 1),
                "times": round(seconds[path][command] / unit, 2),
            }
            for name, path in checkouts.items()
        }
        for command in COMMANDS
    }
    if given.json:
        print(json.dumps({"unit": UNIT, "milliseconds": round(unit * 1000, 1), "commands": figures}))
    else:
        print(f"{UNIT}: {unit * 1000:.1f} ms")
        for command, each in figures.items():
            shown = "; ".join(
                f"{name} {one['times']:5.2f} times ({one['milliseconds']:.1f} ms)" for name, one in each.items()
            )
            print(f"{command:32} {shown}{f', below {LIMITS[command]:g}' if command in LIMITS else ''}")
    return int(any(figures[command]["now"]["times"] >= limit for command, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
