"""Log lines as vLLM's loggers format them."""

from __future__ import annotations

import time


def api_server(pid: int, level: str, place: str, text: str) -> str:
    """Of the API server's process."""
    return _line("APIServer", pid, level, place, text)


def core(pid: int, level: str, place: str, text: str) -> str:
    """Of the engine's process."""
    return _line("EngineCore", pid, level, place, text)


def worker(pid: int, level: str, place: str, text: str) -> str:
    """Of the worker's process."""
    return _line("Worker", pid, level, place, text)


def _line(process: str, pid: int, level: str, place: str, text: str) -> str:
    return f"({process} pid={pid}) {level} {time.strftime('%m-%d %H:%M:%S')} [{place}] {text}"
