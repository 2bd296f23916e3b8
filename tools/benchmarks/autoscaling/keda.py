"""KEDA's side of the scaler: a stream for each ScaledObject, and three calls about each every 15 seconds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from kubeloop.resources import Key
from llmservice_activator.server import MESSAGES, METRIC, SERVICE

INTERVAL = 15.0
"""Seconds between two observations of a ScaledObject: pollingInterval as the operator writes it, and the HPA's own."""
PATIENCE = 3.0
"""KEDA's metrics API server waits no longer."""


@dataclass
class Keda:
    """One connection for all, as KEDA shares it between ScaledObjects with the same address."""

    channel: grpc.aio.Channel
    is_in_use: Callable[[Key], bool]
    """What the answer should be."""
    calls: int = 0
    failed: int = 0
    wrong: int = 0
    metric_seconds: list[float] = field(default_factory=list)
    pushed: dict[Key, float] = field(default_factory=dict)
    """When a stream first said of a service at zero that it is in use."""
    _streams: list[asyncio.Task[None]] = field(default_factory=list)

    def open_streams(self, keys: Sequence[Key]) -> None:
        self._streams += [asyncio.create_task(self._stream(key)) for key in keys]

    async def observe_all(self, keys: Sequence[Key], seconds: float) -> None:
        """Evenly spread over the interval, however slow the answers are."""
        began, count = time.monotonic(), round(seconds / INTERVAL * len(keys))
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                await asyncio.sleep(max(0.0, began + number * INTERVAL / len(keys) - time.monotonic()))
                group.create_task(self.observe(keys[number % len(keys)]))
            await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))

    async def observe(self, key: Key) -> None:
        """One after the other, as KEDA does."""
        asked = reference(key)
        metric = MESSAGES["GetMetricsRequest"](scaledObjectRef=asked, metricName=METRIC)
        try:
            await self._call("GetMetricSpec", asked)
            began = time.monotonic()
            await self._call("GetMetrics", metric)
            self.metric_seconds.append(time.monotonic() - began)
            answer = MESSAGES["IsActiveResponse"].FromString(await self._call("IsActive", asked))
        except grpc.aio.AioRpcError:
            self.failed += 1
        else:
            self.wrong += answer.result != self.is_in_use(key)

    def ended_streams(self) -> int:
        """They stay open as long as the scaler runs."""
        return sum(task.done() for task in self._streams)

    async def close(self) -> None:
        for task in self._streams:
            task.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)

    async def _call(self, method: str, message: Any) -> bytes:
        self.calls += 1
        unary: Any = self.channel.unary_unary(f"/{SERVICE}/{method}")
        answer: bytes = await unary(message.SerializeToString(), timeout=PATIENCE)
        return answer

    async def _stream(self, key: Key) -> None:
        stream: Any = self.channel.unary_stream(f"/{SERVICE}/StreamIsActive")
        async for _ in stream(reference(key).SerializeToString()):
            if not self.is_in_use(key):
                self.pushed.setdefault(key, time.monotonic())


def reference(key: Key) -> Any:
    return MESSAGES["ScaledObjectRef"](name=key.name, namespace=key.namespace)


@contextlib.asynccontextmanager
async def connected(port: int, folder: Path, is_in_use: Callable[[Key], bool]) -> AsyncIterator[Keda]:
    """With the certificate in a folder."""
    files = [(folder / name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt")]
    async with grpc.aio.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(*files)) as channel:
        keda = Keda(channel, is_in_use)
        try:
            yield keda
        finally:
            await keda.close()
