"""The state's port in a flood: the kubelet's probes go on being answered, whoever else connects and stays."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise

import pytest
from llmservice_runtime.supervisor import state_server
from llmservice_runtime.supervisor.client import Response, http_request
from llmservice_runtime.supervisor.state_server import Reply, serve

from tests.support.patience import PATIENCE

PROBES = 20
PROBE_SECONDS = 3.0
"""The kubelet's patience with one probe of ours."""
IDLE = 500

SERVER = """
import asyncio, resource, sys
from llmservice_runtime.supervisor.state_server import Reply, serve

async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
    server = await serve(int(sys.argv[1]), lambda path: Reply(200, path * 200))
    print("listening", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""
# Holds idle connections, half a request in each, and opens those again that it lost; between them whole requests.
FLOOD = """
import select, socket, sys

address, port, source, idle = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
held, reported = [], False

def connect():
    one = socket.socket()
    if source:
        one.bind((source, 0))
    one.settimeout(1)
    one.connect((address, port))
    return one

while not select.select([sys.stdin], [], [], 0)[0]:
    try:
        while len(held) < idle:
            held.append(connect())
            held[-1].send(b"GET /state HTTP/1.1\\r\\n")
        one = connect()
        one.send(b"GET /state HTTP/1.1\\r\\n\\r\\n")
        one.recv(1)
        one.close()
    except OSError:
        pass
    lost = set(select.select(held, [], [], 0)[0])
    for one in lost:
        one.close()
    held = [one for one in held if one not in lost]
    if not reported:
        print("flooding", flush=True)
        reported = True
"""


def quiet_port() -> int:
    """A free one that no connection of a flood has for its own end: those come from above."""
    while True:
        found = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("", found)):
            return found


@contextmanager
def flood(port: int, source: str) -> Iterator[None]:
    """Two at once."""
    flooding = (FLOOD, "127.0.0.1", port, source, IDLE)
    with running(*flooding), running(*flooding):
        yield


@contextmanager
def running(script: str, *args: object) -> Iterator[None]:
    """A process, once it says that it is at work; it ends with its input."""
    command = [sys.executable, "-c", script, *map(str, args)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(PATIENCE)


def probe(port: int) -> bool:
    """As the kubelet does it: a connection, and at once the request."""
    try:
        with socket.create_connection(("127.0.0.1", port), PROBE_SECONDS) as sock:
            sock.sendall(b"GET /readyz HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n")
            return sock.recv(64).startswith(b"HTTP/1.1 200 ")
    except OSError:
        return False


@pytest.fixture
def port() -> int:
    return quiet_port()


@pytest.mark.parametrize("source", ["127.0.0.2", "127.0.0.1"], ids=["a pod's address", "the kubelet's address"])
def test_probes_are_answered_in_a_flood(port: int, source: str) -> None:
    """All of them; from the kubelet's own address no two in a row are lost, which would make a pod unready."""
    with running(SERVER, port), flood(port, source):
        answers = [probe(port) for _ in range(PROBES)]
    assert all(answers) or (source == "127.0.0.1" and (False, False) not in pairwise(answers)), answers


def connected(port: int, source: str) -> socket.socket:
    """From an address of its own, as pods have."""
    found = socket.socket()
    found.bind((source, 0))
    found.connect(("127.0.0.1", port))
    found.setblocking(False)
    return found


async def is_open(sock: socket.socket) -> bool:
    """After everything that the server may have done about it."""
    for _ in range(5):
        await asyncio.sleep(0)
    try:
        return sock.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


async def answered(sock: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, b"GET /a HTTP/1.1\r\n\r\n")
    return await asyncio.wait_for(loop.sock_recv(sock, 1 << 16), PATIENCE)


async def test_of_one_address_the_oldest_connection_goes(port: int) -> None:
    server = await serve(port, lambda path: Reply(200, path))
    first, other = connected(port, "127.0.0.2"), connected(port, "127.0.0.3")
    assert await is_open(other)
    more = [connected(port, "127.0.0.2") for _ in range(state_server.OF_ONE_ADDRESS)]
    assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(first, 1), PATIENCE) == b""
    assert all([await is_open(sock) for sock in (other, *more)])
    assert b"200 OK" in await answered(other)
    assert b"200 OK" in await answered(more[0])
    server.close()
    for sock in (first, other, *more):
        sock.close()


async def test_where_all_are_too_many_one_of_the_greediest_goes(port: int) -> None:
    server = await serve(port, lambda path: Reply(200, path))
    addresses = [
        f"127.0.1.{number}" for number in range(1, state_server.CONNECTIONS // state_server.OF_ONE_ADDRESS + 1)
    ]
    crowd = [connected(port, address) for address in addresses for _ in range(state_server.OF_ONE_ADDRESS)]
    assert all([await is_open(sock) for sock in crowd])
    single = [connected(port, f"127.0.2.{number}") for number in range(1, 9)]
    last = connected(port, "127.0.3.1")
    assert b"200 OK" in await answered(last), "it has accepted all before"
    assert all([await is_open(sock) for sock in single])
    assert sum([not await is_open(sock) for sock in crowd]) == len(single)
    assert b"200 OK" in await answered(single[0])
    server.close()
    for sock in (*crowd, *single, last):
        sock.close()


async def test_one_that_says_nothing_goes(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_server, "READ_SECONDS", 0.05)
    server = await serve(port, lambda path: Reply(200, path))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /a HTTP/1.1\r\n")
    assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
    writer.close()
    server.close()


async def test_a_head_has_a_bound(port: int) -> None:
    server = await serve(port, lambda path: Reply(200, path))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /a HTTP/1.1\r\nX: " + b"x" * state_server.HEAD_LIMIT)
    with suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
    writer.close()
    server.close()


async def test_a_long_answer_comes_whole(port: int) -> None:
    body = "x" * (4 << 20)
    server = await serve(port, lambda path: Reply(200, body))
    answer: Response = await http_request(port, "/state", timeout=PATIENCE)
    assert answer.body == body
    server.close()
