"""A record of every version of an LLMService, beside an independent account of whether it answered."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from tests.support.clock import now
from tests.support.cluster import COLLECTIONS, Cluster, condition

JSON = dict[str, Any]

INTERVAL = 0.2
"""Seconds between two requests."""
_ASK = """
import http.client, json, sys, time
host, model, interval = sys.argv[1], sys.argv[2], float(sys.argv[3])
body = json.dumps({"model": model, "prompt": "hello", "max_tokens": 2})
headers = {"Content-Type": "application/json", "Connection": "close"}
while True:
    at = time.time()
    connection = http.client.HTTPConnection(host, 80, timeout=3)
    try:
        connection.request("POST", "/v1/completions", body, headers)
        answer = connection.getresponse()
        is_answered = answer.status == 200 and '"length"' in answer.read().decode()
    except (OSError, http.client.HTTPException):
        is_answered = False
    finally:
        connection.close()
    print(json.dumps([at, is_answered]), flush=True)
    time.sleep(max(0, at + interval - time.time()))
"""


class Version(NamedTuple):
    """What the API server showed, and when (seconds of the epoch)."""

    at: float
    obj: JSON

    @property
    def status(self) -> JSON:
        found: JSON = self.obj.get("status") or {}
        return found

    def condition(self, kind: str) -> JSON:
        """Empty where it is not there."""
        return condition(self.obj, kind) or {}

    def says(self, kind: str) -> bool:
        return bool(self.condition(kind).get("status") == "True")


class Asked(NamedTuple):
    """One request through the Service, over a connection of its own."""

    at: float
    is_answered: bool


@dataclass
class History:
    """Grows while `recorded` runs."""

    versions: list[Version] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    def spans(self) -> Iterator[tuple[Version, float]]:
        """Each version and when the next one took its place."""
        ends = [version.at for version in self.versions[1:]] + [self.asked[-1].at]
        yield from zip(self.versions, ends, strict=True)

    def silence(self, start: float, end: float) -> float:
        """The longest time in between, in seconds, for which no request was answered."""
        answered = [asked.at for asked in self.asked if asked.is_answered and start <= asked.at <= end]
        return max(later - earlier for earlier, later in pairwise([start, *answered, end]))


@contextmanager
def recorded(cluster: Cluster, namespace: str, name: str, client: str = "client") -> Iterator[History]:
    """Watch an LLMService and ask it all the time, from a running client pod, until the end of the block."""
    record = History()
    kubectl = str(cluster.paths.bin / "kubectl")
    ask = [kubectl, "exec", "-n", namespace, client, "--", "python", "-c", _ASK]
    ask += [f"{name}.{namespace}.svc", name, str(INTERVAL)]
    path = f"{COLLECTIONS['llmservices']}/namespaces/{namespace}/llmservices"
    watch = [kubectl, "get", "--raw", f"{path}?watch=true&fieldSelector=metadata.name%3D{name}"]
    with (
        _read(cluster, ask, lambda row: record.asked.append(Asked(*row))),
        _read(cluster, watch, lambda event: record.versions.append(Version(now(), event["object"]))),
    ):
        yield record
        # What was written last gets its time to be contradicted.
        time.sleep(INTERVAL * 5)


@contextmanager
def _read(cluster: Cluster, command: Sequence[str], take: Callable[[Any], object]) -> Iterator[None]:
    """Give each line of JSON that a command prints to `take`, until the end of the block."""
    process = subprocess.Popen(command, env=cluster.environment, stdout=subprocess.PIPE, text=True)

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                take(json.loads(line))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
        assert process.poll() is None, f"ended: {command}"
    finally:
        process.terminate()
        process.wait()
        reader.join()


def contradictions(record: History, allowed: float) -> Sequence[str]:
    """Where the status said that it answers and for longer than `allowed` seconds nothing did."""
    found = []
    for version, end in record.spans():
        is_wanted = version.obj["spec"]["scaling"]["replicas"] > 0
        reported = [kind for kind in ("Ready", "Available") if version.says(kind)]
        if reported and is_wanted and (silent := record.silence(version.at, end)) > allowed:
            found.append(f"{' and '.join(reported)} at {version.at:.1f}, and {silent:.1f} s without an answer")
    return found
