"""Reads files from Xet, the hub's deduplicated store, with hf_xet: fewer bytes, in several streams.

Tested against hf_xet's own store on disk (tests/unit/fetch/test_xet.py), not against the hub's; after any failure files
are read as plain bytes.
"""

from __future__ import annotations

import atexit
import datetime as dt
import functools
import importlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from llmservice_fetch.failed import Unreachable, words

_MIB = 1 << 20
# hf_xet's own limits follow the machine's memory, not the container's: 1.5 GB and more.
_SETTINGS: dict[str, object] = {
    "reconstruction.download_buffer_size": 128 * _MIB,
    "reconstruction.download_buffer_perfile_size": 32 * _MIB,
    "reconstruction.download_buffer_limit": 128 * _MIB,
    "reconstruction.min_prefetch_buffer": 32 * _MIB,
    "reconstruction.min_reconstruction_fetch_size": 32 * _MIB,
    "reconstruction.max_reconstruction_fetch_size": 64 * _MIB,
    "client.ac_max_download_concurrency": 16,
    "client.retry_max_attempts": 2,
    "client.retry_base_delay": dt.timedelta(seconds=1),
    "client.connect_timeout": dt.timedelta(seconds=10),
    "client.read_timeout": dt.timedelta(seconds=30),
    "telemetry.enabled": False,
}


class Store:
    """The Xet store of one repository. `refresh` is the hub's URL that returns the store's address and a token for it.

    `headers` hold the hub's token, which is sent to `refresh` only.
    """

    def __init__(self, refresh: str, headers: Mapping[str, str]) -> None:
        self._refresh, self._headers = refresh, dict(headers)
        self._lock = threading.Lock()
        self._group: Any = None

    def read(self, file_hash: str, size: int, start: int, end: int) -> Iterator[bytes]:
        """Bytes `start` to `end` (exclusive) of a file, in order. Raises Unreachable."""
        try:
            info = _library().XetFileInfo(file_hash, size)
            stream = self._connected().download_stream(info, start=start, end=end)
        # hf_xet raises exceptions of many types.
        except Exception as error:  # noqa: BLE001
            raise _failed(error) from None
        try:
            for chunk in _chunks(stream):
                start += len(chunk)
                yield chunk
        finally:
            stream.cancel()
        if start < end:
            # For an unknown file hf_xet's stream ends without an error.
            raise Unreachable("the hub's Xet store sent too little")

    def _connected(self) -> Any:
        with self._lock:
            if self._group is None:
                self._group = _session().new_download_stream_group(
                    token_refresh_url=self._refresh,
                    token_refresh_headers=self._headers,
                    custom_headers={"User-Agent": "llmservice"},
                )
            return self._group


def _chunks(stream: Iterator[bytes]) -> Iterator[bytes]:
    while True:
        try:
            chunk = next(stream, None)
        except Exception as error:  # noqa: BLE001
            raise _failed(error) from None
        if chunk is None:
            return
        yield chunk


def _failed(error: Exception) -> Unreachable:
    """The error without URLs' queries: chunks have signed URLs."""
    return Unreachable(f"the hub's Xet store: {words(error)}")


@functools.cache
def _library() -> ModuleType:
    """Import hf_xet with its cache outside of HOME, and without its log, which contains URLs."""
    os.environ["HF_XET_CACHE"] = folder = tempfile.mkdtemp(prefix="llmservice-xet-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["HF_XET_LOG_DEST"] = os.devnull
    return importlib.import_module("hf_xet")


@functools.cache
def _session() -> Any:
    library = _library()
    return library.XetSession(library.XetConfig().with_config(_SETTINGS))
