"""Files that the hub keeps in Xet, its store of chunks, by hf_xet: the same bytes by fewer, in several streams.

Seen against hf_xet's own store on disk (tests/unit/test_fetch_xet.py), never against the hub's: whatever fails here is
fetched as plain bytes.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from llmservice_fetch.errors import Unreachable

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
    """The Xet store of one repository. `refresh` is where the hub says its address and gives a token of an hour for it.

    `headers` hold the hub's token, for `refresh` alone.
    """

    def __init__(self, refresh: str, headers: Mapping[str, str]) -> None:
        self._refresh, self._headers = refresh, dict(headers)
        self._lock = threading.Lock()
        self._group: Any = None

    def read(self, file_hash: str, size: int, start: int, end: int) -> Iterator[bytes]:
        """Bytes of a file from `start` up to and without `end`, in their order. Raises Unreachable."""
        # What hf_xet raises is mostly not of its own.
        import hf_xet

        try:
            stream = self._connected().download_stream(hf_xet.XetFileInfo(file_hash, size), start=start, end=end)
        except Exception as error:  # noqa: BLE001
            raise _failed(error) from None
        try:
            yield from _chunks(stream)
        finally:
            stream.cancel()

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
    """Without its text: that may hold the signed addresses of chunks."""
    return Unreachable(f"the hub's Xet store ({type(error).__name__})")


@functools.cache
def _session() -> Any:
    """With limits, and with its folders out of HOME. Its log has addresses, so that it is thrown away."""
    os.environ.setdefault("HF_XET_CACHE", tempfile.mkdtemp(prefix="llmservice-xet-"))
    os.environ["HF_XET_LOG_DEST"] = os.devnull
    import hf_xet

    return hf_xet.XetSession(hf_xet.XetConfig().with_config(_SETTINGS))
