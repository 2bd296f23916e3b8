"""Workers with the record of what is in work, in a process of their own that one service may take with it.

    python -m tests.unit.doomed_world FOLDER VERSION SERVICES EVENTS [NAME=GENERATION ...]

Reconciles `SERVICES` services, service-0 and so on, on the real queue, and writes a line to EVENTS for each attempt
that begins, each that is done and each status that is written. An attempt at a service that the environment variable
DOOMED names ends the process without a word.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmservice_operator.api.service import Key
from llmservice_operator.control.containment.in_work import InWork
from llmservice_operator.control.context import Context
from llmservice_operator.control.queue.worker import Workers
from llmservice_operator.control.reconcile import Next, reconcile
from llmservice_operator.control.watch.kinds import PARENT, identity_of

from tests.unit.reconcile_world import World, parent

ENDS: Mapping[str, Callable[[], None]] = {
    "exit": lambda: os._exit(1),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def named(name: str, generation: int) -> dict[str, Any]:
    made: dict[str, Any] = parent(generation=generation)
    made["metadata"]["name"] = name
    return made


class Doomed:
    """One life of the process."""

    def __init__(self, folder: Path, version: str, count: int, events: Path, generations: dict[str, int]) -> None:
        names = [f"service-{number}" for number in range(count)]
        self.world = World(*(named(name, generations.get(name, 1)) for name in names))
        self.keys = [Key("ns", name) for name in names]
        self._events = events.open("a", buffering=1)
        doomed, _, how = os.environ.get("DOOMED", "").partition(":")
        self._doomed, self._end = doomed.split(","), ENDS[how or "kill"]
        ctx = self.world.ctx
        ctx.in_work = InWork.of(folder, version, identity=lambda key: identity_of(ctx.cache, key))
        ctx.in_work.others_wait = lambda: ctx.queue.depth > 0
        write = self.world.api.apply_status

        async def told(manifest: Any, *, manager: str) -> Any:
            answer = await write(manifest, manager=manager)
            reasons = [c["reason"] for c in manifest["status"].get("conditions", ())]
            self._say("status", manifest["metadata"]["name"], *reasons[:1])
            return answer

        self.world.api.apply_status = told  # type: ignore[method-assign]

    async def run(self) -> None:
        ctx = self.world.ctx
        ctx.in_work.begin(frozenset(ctx.cache.all_keys()))
        ctx.take_up(self.keys)
        workers = Workers(ctx, reconcile=self._reconcile)
        task = asyncio.create_task(workers.run())
        quiet = 0
        while quiet < 50:
            await asyncio.sleep(0.001)
            self.world.now += 0.05
            ctx.queue._ring()
            ctx.in_work.beat()
            quiet = 0 if ctx.queue.depth or ctx.queue.in_work or ctx.queue.delayed else quiet + 1
        workers.stop()
        await task
        ctx.in_work.close()

    async def _reconcile(self, key: Key, ctx: Context) -> Next:
        self._say("try", key.name)
        await asyncio.sleep(0.002)  # as for an answer: others are in work meanwhile
        if key.name in self._doomed:
            self._end()
        then = await reconcile(key, ctx)
        self._say("done", key.name)
        return then

    def _say(self, *words: str) -> None:
        self._events.write(" ".join(words) + "\n")


def main(argv: list[str]) -> None:
    folder, version, count, events, *generations = argv
    given = {name: int(number) for name, _, number in (each.partition("=") for each in generations)}
    asyncio.run(Doomed(Path(folder), version, int(count), Path(events), given).run())


if __name__ == "__main__":
    assert PARENT == "LLMService"
    main(sys.argv[1:])
