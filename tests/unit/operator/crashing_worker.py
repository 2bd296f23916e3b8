"""Workers with the record of what is in work, in processes of their own that one service may crash.

    python -m tests.unit.operator.crashing_worker

Reads a line of JSON for each process (the arguments of `Life`), forks, and answers with its exit code once it has
ended: an import costs more than a life. A process reconciles its services, service-0 and so on, on the real queue, and
writes a line to the file of events for each attempt that begins, each that is done and each status that is written.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kubeloop.resources import Key, Resource
from llmservice_operator.service.containment import InWork
from llmservice_operator.service.context import Context
from llmservice_operator.service.reconcile import Next, Workers, reconcile
from llmservice_operator.service.watch import identity_of

from tests.unit.reconcile_world import World, parent

DEFECT = 3
"""Exit code after an exception of this module."""
ENDS: Mapping[str, Callable[[], None]] = {
    "exit": lambda: os._exit(1),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


class Life:
    """One life of the process; an attempt at one of the services in `crashing` ends it."""

    def __init__(
        self, folder: str, count: int, crashing: list[str], how: str, events: str, generations: dict[str, int]
    ) -> None:
        names = [f"service-{number}" for number in range(count)]
        self.world = World(*(parent(name=name, generation=generations.get(name, 1)) for name in names))
        self.keys = [Key("ns", name) for name in names]
        self._events = Path(events)
        self._crashing, self._end = crashing, ENDS[how]
        ctx = self.world.ctx
        ctx.in_work = InWork(Path(folder), "1", lambda key: identity_of(ctx.cache, key), lambda: ctx.queue.depth > 0)
        write = self.world.kube.apply_status

        async def logged(resource: Resource, manifest: Any, *, manager: str) -> Any:
            answer = await write(resource, manifest, manager=manager)
            reasons = [c["reason"] for c in manifest["status"].get("conditions", ())]
            self._log("status", manifest["metadata"]["name"], *reasons[:1])
            return answer

        self.world.kube.apply_status = logged  # type: ignore[method-assign]

    async def run(self) -> None:
        ctx = self.world.ctx
        ctx.enqueue(self.keys)
        workers = Workers(ctx, reconcile=self._reconcile)
        task = asyncio.create_task(workers.run())
        quiet = 0
        while quiet < 50:
            await asyncio.sleep(0.001)
            self.world.now += 0.05
            ctx.queue._ring()
            quiet = 0 if ctx.queue.depth or ctx.queue.in_work or ctx.queue.delayed else quiet + 1
        workers.stop()
        await task
        ctx.in_work.close()

    async def _reconcile(self, key: Key, ctx: Context) -> Next:
        self._log("try", key.name)
        await asyncio.sleep(0.002)  # as for an answer: others are in work meanwhile
        if key.name in self._crashing:
            self._end()
        then = await reconcile(key, ctx)
        self._log("done", key.name)
        return then

    def _log(self, *words: str) -> None:
        with self._events.open("a") as events:
            events.write(" ".join(words) + "\n")


def serve() -> None:
    """Until the input ends."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = DEFECT
            try:
                asyncio.run(Life(*json.loads(line)).run())
                code = 0
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
