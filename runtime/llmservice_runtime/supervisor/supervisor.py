"""The life of one server, from preflight to the last stream.

Everything that the supervisor does is one coroutine that reads from top to bottom; beside it run the log's thread, the
state's port and, while serving, the watch for a hung engine. A SIGTERM is an event that each step waits for along with
its own matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from llmservice_runtime.access.access import Access
from llmservice_runtime.adapters import adapter_source
from llmservice_runtime.contract import (
    START_CEILING_SECONDS,
    DrainReport,
    Failure,
    Phase,
    State,
)
from llmservice_runtime.drain import shared_counters
from llmservice_runtime.drain.drain import Drain
from llmservice_runtime.failures import own_failures
from llmservice_runtime.failures.failures import End, classify, last_words
from llmservice_runtime.fetching.fetch_phase import FetchContainer, News, Request, noted
from llmservice_runtime.health import hang, start_watch, watchdog
from llmservice_runtime.health.serving_watch import ServingWatch
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.preflight import model_checks
from llmservice_runtime.preflight.model_files import read_config
from llmservice_runtime.redact import Redactor
from llmservice_runtime.supervisor import answers, log_reader, preflight_phase, smoke, state_server, vllm_process
from llmservice_runtime.supervisor.dependencies import Surroundings
from llmservice_runtime.supervisor.loopback import ask
from llmservice_runtime.supervisor.processes import Child, Ended, Reaper
from llmservice_runtime.supervisor.starting import Start, with_environment
from llmservice_runtime.supervisor.waiting import end, failure_of, first, in_thread

T = TypeVar("T")


class _Terminated(Exception):
    """SIGTERM came while something else was awaited."""


class _Failed(Exception):
    """The server cannot go on; carries the classified reason."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def run(options: ServeOptions, flags: Sequence[str], surroundings: Surroundings | None = None) -> int:
    """Serve until the end; the exit code of the process. ValueError for a variable of ours that makes no sense."""
    around = surroundings or Surroundings()
    return asyncio.run(_run(*with_environment(options, around), flags))


async def _run(options: ServeOptions, around: Surroundings, flags: Sequence[str]) -> int:
    return await Supervisor(options, flags, around).run()


class Supervisor:
    """One server."""

    def __init__(self, options: ServeOptions, args: Sequence[str], around: Surroundings) -> None:
        self._options, self._args, self._around = options, tuple(args), around
        self._pace, self._clock = around.pace, around.clock
        self._flags = vllm_process.read_flags(args)
        self._terminate = asyncio.Event()
        self._hurry = asyncio.Event()
        self._entered = around.clock()
        self._starting = Start(options, around)
        self._state = self._starting.told(State(Phase.PREFLIGHT, model_names=self._flags.model_names))
        self._loop = asyncio.get_running_loop()
        self._reaper = Reaper(self._loop)
        self._board = shared_counters.create(options.drain_file)
        slots, port = self._board.slots, self._flags.port
        self._serving = ServingWatch(options, around, slots, port)
        self._draining = Drain(slots, options, port, around.pace, around.clock)
        self._log: log_reader.LogReader | None = None
        self._access = Access(options, self._flags, around.environment, self._say)
        self._fetches = FetchContainer.of(options, around, self._say)
        self._adapters = adapter_source.adapters(options, self._flags, self._access, around, self._fetches, self._say)

    async def run(self) -> int:
        """The whole life, and what to do about its end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_terminate, number)
        try:
            async with await self._listen():
                with watchdog.watching(self._loop, self._pace.stuck_seconds):
                    return await self._life()
        except _Terminated:
            self._say("stopped before it served")
            return 0
        except _Failed as failed:
            return self._report(failed.failure)
        finally:
            self._reaper.close()

    async def _listen(self) -> state_server.StateServer:
        try:
            return await state_server.serve(self._options.state_port, self.respond)
        except OSError as error:
            raise _Failed(own_failures.state_port_taken(self._options.state_port, error)) from error

    async def _life(self) -> int:
        await self._check()
        await self._fetch()
        child = self._start()
        try:
            await self._until_healthy(child)
            await self._put_adapters(child)
            await self._until_answering(child)
            async with self._adapters.followed(self._pace.adapters_seconds):
                await self._while_serving(child)
            return await self._drain(child)
        except _Terminated:
            await self._stop(child, self._pace.stop_loading_seconds)
            raise
        finally:
            child.kill_group()

    # Start

    async def _check(self) -> None:
        """The preflight, in a process of its own that is gone before vLLM starts: it may import torch."""
        self._access.look()
        if failure := self._access.failure():
            raise _Failed(failure)
        command = (*self._around.preflight, *self._options.to_args(), "--", *self._args)
        child = self._reaper.start(command, self._around.environment, merge_stderr=False)
        try:
            work = preflight_phase.failure_of(child, self._pace.preflight_seconds, self._say)
            if failure := await self._unless_terminated(work):
                raise _Failed(failure)
        finally:
            child.kill_group()

    async def _fetch(self) -> None:
        """What the flags name and is not there, by the fetch container. The start budget begins afterwards."""
        if self._options.fetch:
            self._enter(Phase.FETCHING, "looking for the model")
            fetch = self._fetches.get(Request.of(self._options, self._args), self._on_news)
            if isinstance(fetched := await self._unless_terminated(fetch), Failure):
                raise _Failed(fetched)
            self._state = replace(self._state, transfer=None)
        config = await self._unless_terminated(in_thread(lambda: read_config(Path(self._flags.model))))
        extended = model_checks.extended(config, self._flags, self._options.context_extension)
        if isinstance(extended, Failure):
            raise _Failed(extended)
        if extended:
            self._say(f"context extension: {' '.join(extended)}")
            self._args += extended

    def _on_news(self, news: News) -> None:
        self._state = noted(self._state, news)

    def _start(self) -> Child:
        self._enter(Phase.LOADING, "starting vLLM")
        environment = vllm_process.environment(self._options, self._flags, self._around.environment, self._say)
        try:
            child = self._reaper.start((*self._around.command, *self._args), environment, merge_stderr=True)
        except OSError as error:
            raise _Failed(own_failures.engine_missing(error)) from error
        self._log = log_reader.LogReader(child.output, self._around.output, self._from_log_thread)
        self._starting.begin()
        return child

    async def _until_healthy(self, child: Child) -> None:
        await self._while_it_moves(child, self._healthy())
        self._starting.moved()

    async def _healthy(self) -> None:
        """Poll /health; a refused connection is what loading looks like."""
        while True:
            with contextlib.suppress(OSError):
                if (await ask(self._flags.port, "/health", timeout=5)).status == 200:
                    return
            await asyncio.sleep(self._pace.poll_seconds)

    async def _while_it_moves(self, child: Child, work: Awaitable[T]) -> T:
        """The result of a step of the start: within its budget, and past it for as long as something moves."""
        step = asyncio.ensure_future(work)
        try:
            while True:
                await self._beside(child, asyncio.wait([step], timeout=self._pace.poll_seconds))
                if step.done():
                    return step.result()
                verdict = self._starting.look(child.pid, self._left())
                if verdict in (start_watch.Verdict.STOPPED, start_watch.Verdict.TOO_LONG):
                    raise await self._give_up(child, self._starting.failure(verdict, self._state))
                self._note_slow(verdict is start_watch.Verdict.SLOW)
        finally:
            await end(step)

    def _note_slow(self, slow: bool) -> None:
        if slow and not self._state.slow:
            self._say(f"slower than the budget of {self._options.start_seconds:g} s, but it moves: going on")
        self._state = replace(self._state, slow=slow)

    async def _put_adapters(self, child: Child) -> None:
        """Before anybody is told that the server is there; but a slow hub does not use up the start budget."""
        with contextlib.suppress(asyncio.TimeoutError):
            await self._beside(child, asyncio.wait_for(self._adapters.settle(), max(self._left() / 2, 1)))

    async def _until_answering(self, child: Child) -> None:
        self._enter(Phase.SMOKE, "sending a first request")
        try:
            request = smoke.first_request(self._flags, self._access.headers, timeout=START_CEILING_SECONDS)
            path = await self._while_it_moves(child, request)
            unguarded = await self._beside(child, self._access.unguarded(self._flags.port))
        except (OSError, smoke.SmokeFailed) as error:
            # An engine that dies of its first request takes a moment to end, and then its own words count.
            await self._beside(child, asyncio.sleep(self._pace.stop_serving_seconds))
            raise await self._give_up(child, own_failures.smoke_failed(error)) from error
        if unguarded:
            raise await self._give_up(child, unguarded)
        seconds = self._starting.seconds
        measured = replace(self._state.measured, start_seconds=round(seconds, 1))
        self._state = self._starting.told(replace(self._state, started=True, measured=measured))
        self._say(f"{path} answered; serving after {seconds:.1f} s")

    # Serve

    async def _while_serving(self, child: Child) -> None:
        """Watch until SIGTERM."""
        self._enter(Phase.SERVING, "")
        while True:
            self._state = replace(self._state, ready=not (self._state.hung or self._terminate.is_set()))
            try:
                await self._beside(child, asyncio.sleep(self._pace.watch_seconds))
                self._access.look()
                verdict = await self._beside(child, self._serving.look())
            except _Terminated:
                return
            if verdict is hang.Verdict.RESTART:
                raise await self._give_up(child, self._why_still())
            self._note_hang(verdict is hang.Verdict.UNREADY)

    def _why_still(self) -> Failure:
        """A worker may have been killed, and the rest of vLLM may wait for it for ever."""
        killed = self._serving.memory
        return own_failures.killed_for_memory(killed) if killed.kills else own_failures.engine_hung(self._serving.still)

    def _note_hang(self, hung: bool) -> None:
        if hung != self._state.hung:
            self._say("requests wait but the engine does not move: not ready" if hung else "the engine moves again")
        progress = "requests wait but the engine does not move" if hung else ""
        self._state = replace(self._state, hung=hung, progress=progress)

    # Drain

    async def _drain(self, child: Child) -> int:
        """Unready, connections told to end; newcomers refused; the streams awaited; vLLM ended: docs/draining.md."""
        self._enter(Phase.DRAINING, "waiting until no new connections come")
        self._state = replace(self._state, ready=False)
        await self._unless_hurried(child, self._draining.until_nobody_comes())
        self._draining.refuse_newcomers()
        if not self._state.hung:
            self._enter(Phase.DRAINING, "waiting for the requests in flight")
            await self._unless_hurried(child, self._draining.until_idle())
            await self._unless_hurried(child, self._draining.refuse_all())
        cut = self._draining.in_flight
        self._enter(Phase.DRAINING, "stopping vLLM")
        self._say(f"stopping vLLM; streams that took too long and are ended: {cut}" if cut else "idle; stopping vLLM")
        if cut:
            self._leave(DrainReport(cut).to_json())
        # Without the middleware nobody has waited for the streams: vLLM's own --shutdown-timeout does.
        extra = (
            0 if self._board.slots[shared_counters.ATTACHED] or self._hurry.is_set() else self._options.drain_seconds
        )
        await self._stop(child, self._pace.stop_serving_seconds + extra)
        return 0

    async def _unless_hurried(self, child: Child, work: Awaitable[None]) -> None:
        """Some step of the drain; a SIGINT skips it, and a vLLM that ends now has failed."""
        task = await first(work, child.ended, self._hurry.wait())
        if child.ended.done():
            raise _Failed(self._classified(child.ended.result()))
        if error := failure_of(task):
            self._say(f"a step of the drain broke, and the next one follows: {error!r}")

    # Ends

    async def _beside(self, child: Child, work: Awaitable[T]) -> T:
        """The result of some work; but vLLM's end comes first, and then SIGTERM."""
        task = await first(work, child.ended, self._terminate.wait())
        if child.ended.done():
            child.kill_group()
            self._finish_log()
            raise _Failed(self._classified(child.ended.result()))
        if self._terminate.is_set():
            raise _Terminated
        return task.result()

    async def _unless_terminated(self, work: Awaitable[T]) -> T:
        task = await first(work, self._terminate.wait())
        if self._terminate.is_set():
            raise _Terminated
        return task.result()

    async def _give_up(self, child: Child, failure: Failure) -> _Failed:
        """End vLLM because of a failure that the supervisor found."""
        self._say(f"{failure.reason}: {failure.message}")
        await self._stop(child, self._pace.stop_loading_seconds)
        return _Failed(replace(failure, evidence=failure.evidence or last_words(self._tail())))

    async def _stop(self, child: Child, patience: float) -> None:
        if not await vllm_process.stop(child, patience=patience):
            self._say("vLLM did not end by itself and was killed")
        self._finish_log()

    def _classified(self, ended: Ended) -> Failure:
        how = End(ended.code, ended.signal, self._state.phase, self._serving.memory, self._args)
        return classify(how, self._tail())

    def _report(self, failure: Failure) -> int:
        """Where Kubernetes shows it, in the log, and as an exit code that is never 0."""
        # vLLM's words are others' words: they go where many may read them.
        failure = Redactor(self._around.environment).failure(replace(failure, phase=failure.phase or self._state.phase))
        self._enter(Phase.FAILED, failure.message)
        self._state = replace(self._state, ready=False, failure=failure)
        self._say(f"{failure.reason}: {failure.message} {failure.remedy}")
        self._leave(failure.to_json())
        return failure.exit_code or (128 + failure.signal if failure.signal else 1)

    def _leave(self, message: str) -> None:
        """What Kubernetes keeps of a container that ended."""
        try:
            Path(self._options.termination_log).write_text(message, encoding="utf-8")
        except OSError as error:
            self._say(f"the reason could not be written to {self._options.termination_log}: {error}")

    def respond(self, path: str) -> state_server.Reply:
        """What the state's port answers."""
        state = self._adapters.tell(replace(self._state, phase_seconds=self._clock() - self._entered))
        return answers.answer(path, state, self._board.slots, self._access.keys)

    def _on_terminate(self, number: int) -> None:
        if self._terminate.is_set():
            # A kubelet that begins again, say, sends another SIGTERM: no reason to cut streams. Somebody's ^C is.
            self._say(f"told again to end ({signal.Signals(number).name})")
            if number == signal.SIGINT:
                self._hurry.set()
        self._terminate.set()
        # At once: the next probe, and the next answer, may come before the next step of the drain.
        self._state = replace(self._state, ready=False)
        self._draining.close_connections()

    def _from_log_thread(self, raw: str) -> None:
        """Only the start is read: serving is the time of many lines and no news."""
        if not self._state.started:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the interest
                self._loop.call_soon_threadsafe(self._on_line, raw)

    def _on_line(self, raw: str) -> None:
        text = log_reader.parse_line(raw).text
        self._starting.heard(text)
        measured = log_reader.measure(self._state.measured, text)
        progress = log_reader.progress(text) or self._state.progress
        if self._state.phase is Phase.LOADING:
            self._state = replace(self._state, measured=measured, progress=progress)

    def _enter(self, phase: Phase, progress: str) -> None:
        self._entered = self._clock() if phase != self._state.phase else self._entered
        self._state = replace(self._state, phase=phase, progress=progress)
        self._say(f"{phase}: {progress}" if progress else str(phase))

    def _left(self) -> float:
        return self._starting.left(self._state, self._clock() - self._entered)

    def _tail(self) -> list[str]:
        return list(self._log.tail) if self._log else []

    def _finish_log(self) -> None:
        if self._log:
            self._log.join(2)

    def _say(self, text: str) -> None:
        os.write(self._around.output, f"[llmservice] {text}\n".encode())
