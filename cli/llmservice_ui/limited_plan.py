"""`llmservice plan` with limits of its own process, for configurations from anywhere: `python -m ... plan ...`."""

from __future__ import annotations

import resource
import sys

from llmservice_cli.app import run

CPU_SECONDS = 15
"""A usual plan takes less than one."""
MEMORY = 320 * 2**20
"""Bytes of address space; a usual plan takes 42 MiB of memory, and starts with less than 160 MiB of addresses."""

FILE = 64 * 1024
"""Bytes of a file: Python tries with a few whether it has a folder for temporary ones."""


def main() -> int:
    """The exit code of the command. The kernel ends the process where it exceeds a limit."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
