"""python -m tests.support.router_of_file FILE OPTIONS: a router as in its pod, with a file in place of the DNS.

The file has a replica per line, HOST PORT; without it the DNS does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from llmservice_router.__main__ import options, run
from llmservice_router.replicas import Address


def main(file: Path, *arguments: str) -> int:
    async def find() -> frozenset[Address] | None:
        try:
            lines = file.read_text().split("\n")  # noqa: ASYNC240 - some bytes
        except FileNotFoundError:
            return None
        return frozenset((host, int(port)) for host, _, port in (line.partition(" ") for line in lines if line))

    logging.basicConfig(level=logging.INFO, format="[llmservice] %(message)s", stream=sys.stdout)
    return asyncio.run(run(options(["--replicas=of-a-file", *arguments]), find))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
