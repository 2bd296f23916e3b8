"""`python -m benchmarks.fetch.plain CONNECTIONS URL...`: read, and keep nothing: how fast the server is at most."""

from __future__ import annotations

import http.client
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit


def read(url: str) -> int:
    """The bytes that came."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port)
    connection.request("GET", where.path)
    answer = connection.getresponse()
    buffer, count = memoryview(bytearray(1 << 20)), 0
    while got := answer.readinto(buffer):
        count += got
    connection.close()
    return count


def main(connections: int, urls: Sequence[str]) -> None:
    with ThreadPoolExecutor(connections) as pool:
        sum(pool.map(read, urls))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
