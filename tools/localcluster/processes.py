"""Start, watch and stop the components, each in a session of its own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.identity import MARK, Identity, Record, identify, is_alive
from localcluster.paths import ClusterPaths


@dataclass(frozen=True)
class Component:
    """What to run. `inputs` are files whose content it read at start: when they change, it is started again."""

    name: str
    command: tuple[str, ...]
    inputs: tuple[Path, ...] = ()

    def fingerprint(self) -> str:
        digest = hashlib.sha256("\0".join(self.command).encode())
        for path in self.inputs:
            digest.update(path.read_bytes())
        # A rebuilt program is another program under the same name.
        digest.update(os.path.realpath(self.command[0]).encode())
        return digest.hexdigest()[:16]


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """The old content or the new, also when we are killed half-way."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.chmod(mode)
    partial.replace(path)


def record_of(paths: ClusterPaths, name: str) -> Record | None:
    try:
        return Record.from_json((paths.processes / f"{name}.json").read_text())
    except (FileNotFoundError, ValueError, KeyError):
        return None


def records(paths: ClusterPaths) -> tuple[Record, ...]:
    names = sorted(path.stem for path in paths.processes.glob("*.json"))
    return tuple(record for name in names if (record := record_of(paths, name)) is not None)


def running(paths: ClusterPaths, name: str) -> Record | None:
    record = record_of(paths, name)
    return record if record is not None and is_alive(record.identity) else None


def start(paths: ClusterPaths, component: Component, environment: Mapping[str, str]) -> bool:
    """Makes it run as described; False when it already did."""
    fingerprint = component.fingerprint()
    present = running(paths, component.name)
    if present is not None:
        if present.fingerprint == fingerprint:
            return False
        stop(paths, component.name)
    paths.logs.mkdir(parents=True, exist_ok=True)
    log = paths.log(component.name)
    if log.exists():
        log.replace(log.with_suffix(".log.previous"))
    with log.open("wb") as output:
        child = subprocess.Popen(
            component.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=paths.state,
            env={**environment, MARK: str(paths.root)},
            start_new_session=True,
        )
    identity = identify(child.pid)
    if identity is None:
        raise ClusterError(f"{component.name} ended at once", f"its log: {log}")
    # The child outlives us; without this, a warning would say that nobody waited for it.
    child.returncode = 0
    record = Record(component.name, identity, component.command, fingerprint)
    write_atomically(paths.processes / f"{component.name}.json", record.to_json())
    return True


def _await_end(identities: Iterable[Identity], timeout: float) -> tuple[Identity, ...]:
    """Blocks until all have ended, or the time is over; the ones that are left."""
    deadline = time.monotonic() + timeout
    left = []
    for identity in identities:
        try:
            handle = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            # Looked at after the handle is held: from here on the number cannot pass to another process.
            while is_alive(identity) and (rest := deadline - time.monotonic()) > 0:
                if poll.poll(rest * 1000):
                    break
            if is_alive(identity):
                left.append(identity)
        finally:
            os.close(handle)
    return tuple(left)


def _signal(identity: Identity, number: signal.Signals) -> None:
    if is_alive(identity):
        with contextlib.suppress(ProcessLookupError):
            os.kill(identity.pid, number)


def end(identities: Sequence[Identity], grace: float) -> None:
    """SIGTERM, then SIGKILL for what is left after the grace time."""
    for identity in identities:
        _signal(identity, signal.SIGTERM)
    left = _await_end(identities, grace)
    for identity in left:
        _signal(identity, signal.SIGKILL)
    stuck = _await_end(left, 10)
    if stuck:
        numbers = ", ".join(str(identity.pid) for identity in stuck)
        raise ClusterError(
            f"processes {numbers} do not end, not even by SIGKILL",
            "they wait for the kernel (a hung mount or disk); look at /proc/PID/stack",
        )


def kill(identities: Iterable[Identity]) -> None:
    """SIGKILL to all of them before any is waited for."""
    killed = tuple(identities)
    for identity in killed:
        _signal(identity, signal.SIGKILL)
    _await_end(killed, 10)


def stop(paths: ClusterPaths, name: str, grace: float = 10) -> bool:
    """Ends a component; False when it was not running."""
    record = running(paths, name)
    if record is not None:
        end([record.identity], grace)
    (paths.processes / f"{name}.json").unlink(missing_ok=True)
    return record is not None


def log_tail(paths: ClusterPaths, name: str, lines: int = 8) -> str:
    try:
        text = paths.log(name).read_text(errors="replace")
    except FileNotFoundError:
        return "(no log)"
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])


def wait_until(
    what: str, condition: Callable[[], bool], paths: ClusterPaths, component: str, timeout: float, interval: float = 0.2
) -> None:
    """Asks until it holds; fails at once when the component that should make it true has ended."""
    deadline = time.monotonic() + timeout
    while not condition():
        ended = running(paths, component) is None
        if ended or time.monotonic() > deadline:
            why = f"{component} ended" if ended else f"not within {timeout:.0f} s"
            raise ClusterError(f"{what}: {why}", f"end of {paths.log(component)}:\n{log_tail(paths, component)}")
        time.sleep(interval)


def succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


def answers(url: str) -> bool:
    """Whether a health endpoint on this machine says 200; never through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def output(command: Sequence[str]) -> str:
    """What it prints; nothing when it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""
