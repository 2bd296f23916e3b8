"""Gives the fetching process its credentials without anybody else of the same user seeing them: vLLM is one.

What a process is executed with can be read in /proc until it hides that, which it can only do once its Python runs. So
credentials are not among its variables: they cross a socket, and only when the process, hidden by then, asks for them.
A socket and not a pipe: nobody can open another process's socket by way of /proc.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping, MutableMapping

from llmservice_runtime import credentials

OPTION = "--ask-for-credentials"
_STDIN = 0
_ASK = b"?"
_BYTES = 64 << 10


def parts(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The variables that a fetch is executed with, and those that it has to ask for."""
    plain = credentials.without(environment, (), hub=False)
    return plain, {name: value for name, value in environment.items() if name not in plain}


async def give(ours: socket.socket, secret: Mapping[str, str]) -> None:
    """The supervisor's side: answer when asked. One that ends without asking gets nothing."""
    loop = asyncio.get_running_loop()
    ours.setblocking(False)
    if await loop.sock_recv(ours, len(_ASK)):
        await loop.sock_sendall(ours, json.dumps(secret).encode())
        ours.shutdown(socket.SHUT_WR)


def take(environment: MutableMapping[str, str]) -> None:
    """The fetching process's side, to be called when it is hidden: its standard input is the socket."""
    with socket.socket(fileno=os.dup(_STDIN)) as theirs:
        theirs.sendall(_ASK)
        told = b"".join(iter(lambda: theirs.recv(_BYTES), b""))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, _STDIN)
    os.close(null)
    environment.update(json.loads(told))
