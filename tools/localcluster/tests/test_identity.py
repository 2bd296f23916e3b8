"""A process is ours by number, start time and boot; never by its number alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localcluster import identity, processes
from localcluster.identity import Identity, Record, Stat
from localcluster.paths import ClusterPaths
from localcluster.processes import Component

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(600)",
)


@pytest.mark.parametrize("name", ["kubelet", "a b", "a) S 1 (b"])
def test_the_name_of_a_process_may_hold_anything(name: str) -> None:
    fields = " ".join(str(number) for number in range(5, 53))
    assert identity.parse_stat(f"17 ({name}) R 4 {fields}") == Stat(17, "R", 4, 22)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(SLEEP)
    yield child
    child.kill()
    child.wait()


def test_alive_until_it_ends(sleeper: subprocess.Popen[bytes]) -> None:
    known = identity.identify(sleeper.pid)
    assert known is not None
    assert identity.is_alive(known)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not identity.is_alive(known), "a zombie is not alive"
    sleeper.wait()
    assert not identity.is_alive(known)


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot": "another"}], ids=str)
def test_a_recycled_number_is_never_signalled(sleeper: subprocess.Popen[bytes], change: dict[str, object]) -> None:
    known = identity.identify(sleeper.pid)
    assert known is not None
    processes.end([replace(known, **change)], grace=0)  # type: ignore[arg-type]
    assert identity.is_alive(known)


def test_a_record_reads_back() -> None:
    record = Record("etcd", Identity(5, 6, "boot"), ("/bin/etcd", "--x"), "abc")
    assert Record.from_json(record.to_json()) == record


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param(b"A=1\0LLMSERVICE_LOCALCLUSTER=/a\0", True, id="ours"),
        pytest.param(b"LLMSERVICE_LOCALCLUSTER=/a/b\0", False, id="a clone below"),
        pytest.param(b"X=LLMSERVICE_LOCALCLUSTER=/a\0", False, id="a mention"),
        pytest.param(b"", False, id="a process that ended"),
    ],
)
def test_the_mark(environment: bytes, expected: bool) -> None:
    assert identity.has_mark(environment, Path("/a")) is expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("9 8 0:1 / / rw - overlay overlay rw,upperdir=/a/root/1/fs,workdir=/a/w", True, id="a container"),
        pytest.param("9 8 0:1 / / rw - ext4 /dev/vda rw", False, id="the host"),
        pytest.param("9 8 0:1 / /mnt rw - overlay o rw,upperdir=/a/root/1/fs", False, id="the host sees its mount"),
        pytest.param("9 8 0:1 / / rw - overlay o rw,upperdir=/a/root2/1/fs", False, id="another store"),
    ],
)
def test_a_process_in_a_container_of_ours(line: str, expected: bool) -> None:
    assert identity.runs_in_our_container(f"1 1 0:2 / /proc rw - proc proc rw\n{line}\n", Path("/a/root")) is expected


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[ClusterPaths]:
    paths = ClusterPaths(tmp_path)
    paths.state.mkdir()
    yield paths
    for record in processes.records(paths):
        processes.stop(paths, record.name, grace=0)


def running(paths: ClusterPaths, name: str = "sleeper") -> Identity:
    record = processes.running(paths, name)
    assert record is not None
    return record.identity


def test_start_is_idempotent_and_restarts_what_changed_or_was_killed(paths: ClusterPaths, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("a")
    component = Component("sleeper", SLEEP, (config,))
    assert processes.start(paths, component, os.environ)
    first = running(paths)
    assert not processes.start(paths, component, os.environ)
    config.write_text("b")
    assert processes.start(paths, component, os.environ)
    second = running(paths)
    assert (second != first, identity.is_alive(first)) == (True, False)
    os.kill(second.pid, 9)
    os.waitid(os.P_PID, second.pid, os.WEXITED)
    assert processes.start(paths, component, os.environ)
    # And it is found without its record.
    assert running(paths) in identity.ours(paths)
    assert identity.ours(ClusterPaths(paths.root / "other")) == ()


def test_what_ignores_sigterm_is_killed(paths: ClusterPaths) -> None:
    processes.start(paths, Component("stubborn", STUBBORN), os.environ)
    processes.wait_until("it ignores the signal", lambda: paths.log("stubborn").read_text() == "on\n", paths,
                         "stubborn", timeout=20, interval=0.01)  # fmt: skip
    stubborn = running(paths, "stubborn")
    assert processes.stop(paths, "stubborn", grace=0.05)
    assert not identity.is_alive(stubborn)
    assert not processes.stop(paths, "stubborn"), "a second stop has nothing to do"
