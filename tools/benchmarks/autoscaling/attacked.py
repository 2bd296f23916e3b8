"""How long the activator takes for /healthz and KEDA's calls beside four namespaces that attack it, by how long it
takes at rest: `python -m benchmarks.autoscaling.attacked [--seconds 40]`.

The activator, who asks it, and the clients of each namespace are processes of their own; the API server is simulated in
the activator's. Four clients of each namespace send bodies that take long to look through, for a model that the service
has not, and two hold idle connections. On few processors the clients
take time from the activator, too: a ratio says what a kubelet and KEDA see, not what the activator spends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import grpc
import grpc.aio
from llmservice_activator import server

from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.unit.api_server import ApiServer
from tests.unit.scaler_world import request, running
from tests.unit.scaler_zero_world import at_zero

NAMESPACES = 4
BODIES = {
    "floats": b'{"model":"x","a":[' + b",".join([b"2.2250738585072011e-308"] * 200_000) + b"]}",
    "keys": b'{"model":"x"' + b"".join(b',"%d":0' % n for n in range(30_000)) + b"}",
    "integers": b'{"model":"x","a":[' + b",".join([b"9" * 4300] * 1_000) + b"]}",
    "escapes": b'{"model":"x","a":"' + b'\\"' * 60_000 + b'"}',
}
"""That take long to look through, and are within the bounds."""
IDLE = 400
"""Connections of one client, which are opened again before they are closed for being idle."""
Times = dict[str, list[float]]


def serve(folder: Path, ports: list[int], health: int, keda: int, up: Event) -> None:
    """An activator with a service in each namespace, until it is ended."""

    async def run() -> None:
        services = [at_zero("s", port=port, namespace=f"attacker-{n}") for n, port in enumerate(ports)]
        api = ApiServer(at_zero(port=free_port()), *services)
        async with running(api, folder, health_port=health, port=keda):
            up.set()
            await asyncio.Event().wait()

    asyncio.run(run())


def attack(url: str, answers: Synchronized[int]) -> None:
    """The clients of the service at this address, until they are ended; counts what is answered."""
    where = urlsplit(url)

    async def send(session: aiohttp.ClientSession, body: bytes) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.post(f"{url}/v1/chat/completions", data=body) as response:
                    await response.read()
                    with answers.get_lock():
                        answers.value += response.status in (404, 413)

    async def idle() -> None:
        while True:
            with contextlib.suppress(OSError):
                opened = [await asyncio.open_connection(where.hostname, where.port or 80) for _ in range(IDLE)]
                await asyncio.sleep(25)
                for _, writer in opened:
                    writer.close()

    async def run() -> None:
        headers = {"Content-Type": "application/json"}
        async with aiohttp.ClientSession(headers=headers) as session:
            await asyncio.gather(*(send(session, body) for body in BODIES.values()), idle(), idle())

    asyncio.run(run())


def poll(urls: Sequence[str]) -> None:
    """A client that lists the models of services each second, until it is ended: no use of them."""

    async def run() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5)) as session:
            while True:
                for url in urls:
                    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                        async with session.get(f"{url}/v1/models") as response:
                            await response.read()
                await asyncio.sleep(1)

    asyncio.run(run())


async def ask(folder: Path, health: int, keda: int, seconds: float) -> Times:
    """Seconds of each kind of question, asked in turn."""
    tls = grpc.ssl_channel_credentials(*((folder / name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt")))
    async with aiohttp.ClientSession() as session, grpc.aio.secure_channel(f"localhost:{keda}", tls) as channel:

        def call(method: str) -> Callable[[], Awaitable[object]]:
            unary: Callable[..., Awaitable[object]] = channel.unary_unary(f"/{server.SERVICE}/{method}")
            return lambda: unary(request(method), timeout=60)

        async def healthz() -> None:
            async with session.get(f"http://127.0.0.1:{health}/healthz") as response:
                response.raise_for_status()

        asked = {"/healthz": healthz, "IsActive": call("IsActive"), "GetMetrics": call("GetMetrics")}
        found: Times = {name: [] for name in asked}
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            for name, question in asked.items():
                began = time.monotonic()
                await question()
                found[name].append(time.monotonic() - began)
            await asyncio.sleep(0.02)
        return found


@contextlib.contextmanager
def started(*processes: multiprocessing.process.BaseProcess) -> Iterator[None]:
    """Processes that are ended at the end."""
    for each in processes:
        each.start()
    try:
        yield
    finally:
        for each in processes:
            each.kill()
            each.join()


def main() -> int:
    """Measures at rest and beside the attack, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="of each of both measurements (default: 40)")
    seconds = parser.parse_args().seconds
    processes = multiprocessing.get_context("spawn")
    ports = [free_port() for _ in range(NAMESPACES)]
    health, keda, up = free_port(), free_port(), processes.Event()
    answers: Synchronized[int] = processes.Value("q", 0)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        authority = Authority.make(folder / "authority")
        authority.issue(folder / "server")
        authority.issue(folder / "keda")
        with started(processes.Process(target=serve, args=(folder, ports, health, keda, up))):
            if not up.wait(120):
                print("the activator did not start", file=sys.stderr)
                return 1
            rest = asyncio.run(ask(folder / "keda", health, keda, seconds))
            with started(
                *(processes.Process(target=attack, args=(f"http://127.0.0.1:{port}", answers)) for port in ports)
            ):
                while answers.value < 4 * NAMESPACES:  # all run
                    time.sleep(0.1)
                before_them = answers.value
                attacked = asyncio.run(ask(folder / "keda", health, keda, seconds))
                answered = answers.value - before_them
    print(f"{answered} bodies of {NAMESPACES} namespaces were answered meanwhile")
    print("| question | at rest, median | beside the attack, median | ratio | longest at rest | longest beside it |")
    print("|-|-|-|-|-|-|")
    for name, times in rest.items():
        before, after = statistics.median(times), statistics.median(attacked[name])
        longest = f"{1000 * max(times):.0f} ms | {1000 * max(attacked[name]):.0f} ms"
        print(f"| {name} | {1000 * before:.1f} ms | {1000 * after:.1f} ms | {after / before:.0f} | {longest} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
