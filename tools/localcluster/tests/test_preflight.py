"""What the machine lacks is said before anything is made, with what to do about it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from localcluster import lock, preflight
from localcluster.errors import ClusterError
from localcluster.paths import ClusterPaths
from localcluster.preflight import GIB, Taken


def test_too_little_is_refused_with_a_remedy() -> None:
    preflight.require_root(0)
    with pytest.raises(ClusterError, match=r"(?s)needs root.*sudo"):
        preflight.require_root(1000)
    disk = Path("/x")
    preflight.require_disk(disk, 12 * GIB, 12 * GIB, "building")
    with pytest.raises(ClusterError, match=r"(?s)/x has 3\.0 GiB free, and building needs 12 GiB.*free 9\.0 GiB"):
        preflight.require_disk(disk, 3 * GIB, 12 * GIB, "building")


def test_missing_tools_are_named_by_their_packages() -> None:
    present = {"iptables", "ip"}
    packages = preflight.missing_packages(
        {"iptables": "iptables", "ip": "iproute2", "socat": "socat", "conntrack": "conntrack"},
        lambda tool: tool if tool in present else None,
    )
    assert packages == ("conntrack", "socat")


def test_listening_sockets_of_the_kernels_table() -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:192B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1\n"
        "   2: 0200007F:192B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1\n"
        "   1: 0100007F:192B 0100007F:8000 01 00000000:00000000 00:00000000 00000000     0        0 4712 1\n"
    )
    assert preflight.listeners(table) == [(6443, 4711), (6443, 4713)]


def test_the_holder_of_a_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (taken,) = preflight.taken_ports(frozenset(), {port: "kube-apiserver"})
        assert (taken.port, taken.pid) == (port, os.getpid())
        assert f"port {port} (for kube-apiserver) is held by process {os.getpid()} (" in str(taken)
        assert preflight.taken_ports(frozenset({os.getpid()}), {port: "kube-apiserver"}) == ()
    assert preflight.taken_ports(frozenset(), {port: "kube-apiserver"}) == ()


def test_a_socket_of_a_process_that_is_ending_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ending, foreign = Taken(10250, "kubelet", None, ""), Taken(2379, "etcd", 7, "etcd")
    looks = [(ending,), (ending,), ()]
    monkeypatch.setattr(preflight, "taken_ports", lambda ours: looks.pop(0))
    preflight.require_ports(frozenset())
    assert looks == []
    monkeypatch.setattr(preflight, "taken_ports", lambda ours: (foreign,))
    with pytest.raises(ClusterError, match="process 7"):
        preflight.require_ports(frozenset())
    monkeypatch.setattr(preflight, "ENDING", 0.1)
    monkeypatch.setattr(preflight, "taken_ports", lambda ours: (ending,))
    with pytest.raises(ClusterError, match="that we cannot see"):
        preflight.require_ports(frozenset())


def test_another_clone_is_named(tmp_path: Path) -> None:
    place = tmp_path / "machine.json"
    mine, other = ClusterPaths(tmp_path / "mine"), ClusterPaths(tmp_path / "other")
    assert lock.other_clone(mine, place) is None
    lock.claim(other, place)
    assert lock.other_clone(mine, place) == other.root
    assert lock.other_clone(other, place) is None
    lock.release(mine, place)
    assert lock.other_clone(mine, place) == other.root, "a clone gives back only what is its own"
    lock.release(other, place)
    assert lock.other_clone(mine, place) is None
    assert str(other.root) in str(lock.conflict(other.root))
    place.write_text('{"clone": ')
    assert lock.other_clone(other, place) is None, "a lock that was written by half is none"


def test_one_up_or_down_at_a_time(tmp_path: Path) -> None:
    place = tmp_path / "machine.json"
    with lock.exclusive(place), pytest.raises(ClusterError, match="at work"), lock.exclusive(place):
        raise AssertionError("two at a time")
    with lock.exclusive(place):
        pass
