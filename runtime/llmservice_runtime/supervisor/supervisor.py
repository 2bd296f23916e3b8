"""Runs one server: preflight, fetch, start, smoke request, serving, drain.

One coroutine (`_lifecycle`) executes the steps in order. Beside it run the log reader's thread, the state server and,
while serving, the adapters' task. SIGTERM sets an event that each step waits for together with its own work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from llmservice_runtime import shared_counters
from llmservice_runtime.contract import (
    GPU,
    READY_PATH,
    START_CEILING_SECONDS,
    STARTUP_PATH,
    DrainReport,
    Failure,
    Phase,
    State,
)
from llmservice_runtime.failures import failures
from llmservice_runtime.failures.failures import End, classify, last_words
from llmservice_runtime.health import hang, start_watch, watchdog
from llmservice_runtime.health.hang import ServingWatch
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.preflight import model_checks, preflight
from llmservice_runtime.preflight.accelerators import driver_version
from llmservice_runtime.preflight.model_files import read_config
from llmservice_runtime.redact import Redactor
from llmservice_runtime.supervisor import adapters, addresses, client, log_reader, state_server, vllm_process
from llmservice_runtime.supervisor.client import Access
from llmservice_runtime.supervisor.dependencies import Dependencies
from llmservice_runtime.supervisor.drain import Drain
from llmservice_runtime.supervisor.fetch_phase import FetchContainer, Progress, Request, with_progress
from llmservice_runtime.supervisor.processes import Child, Ended, Reaper
from llmservice_runtime.supervisor.read_ahead import reading_ahead
from llmservice_runtime.supervisor.start_cache import StartCache, opened
from llmservice_runtime.supervisor.starting import Start, with_environment
from llmservice_runtime.supervisor.tasks import cancel_and_wait, exception_of, first_done, in_thread

T = TypeVar("T")


class Terminated(Exception):
    """SIGTERM arrived during a step."""


class Recalled(Exception):
    """vLLM is to end, and to start again together with the other pods of its group."""


class Failed(Exception):
    """The server failed; carries the classified failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def run(options: ServeOptions, flags: Sequence[str], dependencies: Dependencies | None = None) -> int:
    """Run a server until its end; the exit code. ValueError for an invalid LLMSERVICE_ variable."""
    dependencies = dependencies or Dependencies()
    return asyncio.run(_run(*with_environment(options, dependencies), flags))


async def _run(options: ServeOptions, dependencies: Dependencies, flags: Sequence[str]) -> int:
    if options.nodes > 1:
        from llmservice_runtime.group.supervisor import GroupSupervisor  # which few pods need

        return await GroupSupervisor(options, flags, dependencies).run()
    return await Supervisor(options, flags, dependencies).run()


class Supervisor:
    """Supervises one vLLM process. `args` is vLLM's command line."""

    def __init__(self, options: ServeOptions, args: Sequence[str], dependencies: Dependencies) -> None:
        self._options, self._args, self._dependencies = options, tuple(args), dependencies
        self._timing, self._clock = dependencies.timing, dependencies.clock
        self._flags = vllm_process.read_flags(args, options.expected_version)
        self._terminate = asyncio.Event()
        self._recalled = asyncio.Event()
        """Set in a group only."""
        self._skip_drain = asyncio.Event()
        self._entered = self._probed = self._container_began = dependencies.clock()
        self._gpu: GPU | None = None
        self._loop = asyncio.get_running_loop()
        self._reaper = Reaper(self._loop)
        self._log_reader: log_reader.LogReader | None = None
        self._access = Access(options, self._flags, dependencies.environment, self._log)
        self._fetches = FetchContainer.of(options, dependencies, self._log)
        self._renew()
        self._state = self._starting.with_budget(State(Phase.PREFLIGHT, model_names=self._flags.model_names))

    def _renew(self) -> None:
        """What belongs to one vLLM process."""
        options, dependencies, port = self._options, self._dependencies, self._flags.port
        self._starting = Start(options, dependencies, self._container_began)
        self._counters = shared_counters.create(options.drain_file)
        self._serving = ServingWatch(options, dependencies, self._counters.slots, port)
        self._draining = Drain(self._counters.slots, options, port, dependencies.timing, dependencies.clock)
        self._adapters = adapters.of_server(options, self._flags, self._access, dependencies, self._fetches, self._log)

    async def run(self) -> int:
        """Run the lifecycle; the exit code. Failures are written to the log and the termination message."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_terminate, number)
        try:
            async with await self._listen():
                with watchdog.watching(self._loop, self._timing.stuck_seconds):
                    return await self._lifecycle()
        except Terminated:
            self._log("stopped before it served")
            return 0
        except Failed as failed:
            return self._report(failed.failure)
        finally:
            self._reaper.close()

    async def _listen(self) -> state_server.StateServer:
        try:
            return await state_server.serve(self._options.state_port, self.respond)
        except OSError as error:
            raise Failed(failures.state_port_taken(self._options.state_port, error)) from error

    async def _lifecycle(self) -> int:
        self._listen_at_what_there_is()
        self._args += vllm_process.watchdog_arguments(self._args, self._options)
        cache = await self._until_terminated(opened(self._options, self._timing.volume_seconds, self._log))
        # vLLM is imported while the model is checked and fetched.
        launched = self._launch(cache)
        child = launched.child
        try:
            await self._check()
            await self._fetch()
            with reading_ahead(self._flags.model, self._flags.load_format, self._dependencies.cgroup):
                await self._start(launched, cache)
            async with self._adapters.reconciling(self._timing.adapters_seconds):
                await self._serve(child)
            code = await self._drain(child)
            # The smoke request, which clients' counts exclude, was skipped after a clean end of the last server.
            has_answered = not cache.ended_well or self._counters.slots[shared_counters.BEGUN]
            if has_answered and not self._state.hung:
                cache.mark_drained()
            return code
        except Terminated:
            await self._stop(child, self._timing.stop_loading_seconds)
            raise
        finally:
            child.kill_group()

    # Start

    def _listen_at_what_there_is(self) -> None:
        """Replace --host :: if it would exclude IPv4 clients."""
        if why := addresses.only_ipv4(self._flags.host):
            self._log(f"{why}: vLLM gets --host {addresses.EVERY_IPV4} in place of {self._flags.host}")
            self._args += ("--host", addresses.EVERY_IPV4)
            self._flags = replace(self._flags, host=addresses.EVERY_IPV4)

    async def _check(self) -> None:
        """Run the preflight in a child process, because it may import torch and use GPU memory."""
        self._access.log_changes()
        if failure := self._access.failure():
            raise Failed(failure)
        command = (*self._dependencies.preflight, *self._options.to_args(), "--", *self._args)
        child = self._reaper.start(command, self._dependencies.environment, merge_stderr=False)
        try:
            work = preflight.report_of(child, self._timing.preflight_seconds, self._log)
            report = await self._until_terminated(work)
            self._gpu = report.gpu
            if report.failure is not None:
                raise Failed(report.failure)
        finally:
            child.kill_group()

    async def _fetch(self) -> None:
        """Fetch missing artifacts with the fetch container, and add context flags from the model's config.

        The start budget begins afterwards.
        """
        if self._options.fetch:
            self._enter(Phase.FETCHING, "looking for the model")
            fetch = self._fetches.get(Request.of(self._options, self._args), self._on_progress)
            if isinstance(fetched := await self._until_terminated(fetch), Failure):
                raise Failed(fetched)
            self._state = replace(self._state, transfer=None)
        config = await self._until_terminated(in_thread(lambda: read_config(Path(self._flags.model))))
        extended = model_checks.extended(config, self._flags, self._options.context_extension)
        if isinstance(extended, Failure):
            raise Failed(extended)
        if extended:
            self._log(f"context extension: {' '.join(extended)}")
            self._args += extended

    def _on_progress(self, progress: Progress) -> None:
        self._state = with_progress(self._state, progress)

    def _launch(self, cache: StartCache) -> vllm_process.Launched:
        inherited = {**self._variables(), **self._dependencies.environment}
        given = vllm_process.environment(self._options, self._flags, inherited, self._log)
        command = (*self._command, *cache.processes)
        try:
            launched = vllm_process.Launched(self._reaper, command, cache.environment(given))
        except OSError as error:
            raise Failed(failures.engine_missing(error)) from error
        self._log_reader = log_reader.LogReader(launched.child.output, self._dependencies.output, self._from_log_thread)
        return launched

    @property
    def _command(self) -> Sequence[str]:
        """That starts vLLM."""
        return self._dependencies.command

    def _arguments(self) -> tuple[str, ...]:
        """vLLM's."""
        return self._args

    def _variables(self) -> Mapping[str, str]:
        """Further variables of vLLM, which those of the container override."""
        return {}

    async def _start(self, launched: vllm_process.Launched, cache: StartCache) -> None:
        """Start vLLM until it serves."""
        self._enter(Phase.LOADING, "starting vLLM")
        self._starting.begin()
        child = launched.child
        try:
            await self._while_running(child, in_thread(lambda: launched.start(self._arguments())))
            await self._within_budget(child, client.healthy(self._flags.port, self._timing.health_seconds))
            await self._check_reachable(child)
            self._starting.on_step()
            await self._load_adapters(child)
            await self._smoke_test(child, cache)
        except Failed:
            self._on_failed_start(cache)
            raise
        cache.mark_served()

    def _on_failed_start(self, cache: StartCache) -> None:
        """The next start is without these files."""
        cache.mark_failed()

    async def _within_budget(self, child: Child, work: Awaitable[T]) -> T:
        """The result of a step of the start. Past the budget it continues only while the start makes progress."""
        step = asyncio.ensure_future(work)
        try:
            while True:
                await self._while_running(child, asyncio.wait([step], timeout=self._timing.poll_seconds))
                if step.done():
                    return step.result()
                verdict = self._starting.evaluate(child.pid, self._remaining())
                if verdict in (start_watch.Verdict.STOPPED, start_watch.Verdict.TOO_LONG):
                    raise await self._abort(child, self._starting.failure(verdict, self._state))
                if (slow := verdict is start_watch.Verdict.SLOW) and not self._state.slow:
                    budget = self._options.start_seconds
                    self._log(f"start exceeds its budget of {budget:g} s but makes progress: continuing")
                self._state = replace(self._state, slow=slow)
        finally:
            await cancel_and_wait(step)

    async def _check_reachable(self, child: Child) -> None:
        """Require that vLLM answers on one of the pod's addresses, since clients do not use loopback."""
        known = self._dependencies.pod_addresses()
        refused = await self._while_running(child, addresses.refused(self._flags.port, known))
        if refused and len(refused) == len(known):
            raise await self._abort(child, failures.pod_addresses_refused(self._flags.port, refused))
        if refused:
            listens = self._flags.host or addresses.EVERY_IPV4
            self._log(f"clients are refused at {', '.join(refused)}, since vLLM listens at {listens}")

    async def _load_adapters(self, child: Child) -> None:
        """Load adapters before the server is ready, for at most half of the remaining budget: a hub may be slow."""
        seconds = max(self._remaining() / 2, 1)
        with contextlib.suppress(asyncio.TimeoutError):
            await self._while_running(child, asyncio.wait_for(self._adapters.reconcile(), seconds))

    async def _smoke_test(self, child: Child, cache: StartCache) -> None:
        """Send a smoke request, unless the last server with this start cache ended well: then the first client's
        suffices."""
        self._enter(Phase.SMOKE, "sending a first request")
        done = "answered requests before"
        try:
            if not cache.ended_well:
                request = client.first_request(self._flags, self._access.headers, timeout=START_CEILING_SECONDS)
                done = f"{await self._within_budget(child, request)} returned 200"
            unguarded = await self._while_running(child, self._access.check_guarded(self._flags.port))
        except (OSError, client.SmokeFailed) as error:
            # An engine that fails at its first request ends a moment later; its log then has the cause.
            await self._while_running(child, asyncio.sleep(self._timing.stop_serving_seconds))
            raise await self._abort(child, failures.smoke_failed(error)) from error
        if unguarded:
            raise await self._abort(child, unguarded)
        seconds, self._starting.is_done = self._starting.seconds, True
        measured = replace(cache.reported(self._state.measured), start_seconds=round(seconds, 1))
        self._state = self._starting.with_budget(replace(self._state, started=True, measured=measured))
        self._log(f"{done}; serving after {seconds:.1f} s")

    # Serve

    async def _serve(self, child: Child) -> None:
        """Evaluate health every `watch_seconds` until SIGTERM."""
        self._enter(Phase.SERVING, "")
        while True:
            self._state = replace(self._state, ready=not (self._state.hung or self._terminate.is_set()))
            try:
                await self._while_running(child, asyncio.sleep(self._timing.watch_seconds))
                self._access.log_changes()
                verdict = await self._while_running(child, self._serving.evaluate())
            except Terminated:
                return
            if verdict is hang.Verdict.RESTART:
                raise await self._abort(child, self._hang_failure())
            self._set_hung(verdict is hang.Verdict.UNREADY)

    def _hang_failure(self) -> Failure:
        """Killed for memory if a worker was, since the rest of vLLM then waits for it forever; else hung."""
        memory = self._serving.memory
        if memory.kills:
            return failures.killed_for_memory(memory)
        return failures.engine_hung(self._serving.stalled_seconds, self._serving.stacks())

    def _set_hung(self, hung: bool) -> None:
        if hung != self._state.hung:
            self._log("requests wait but the engine makes no progress: not ready" if hung else "the engine recovered")
        progress = "requests wait but the engine makes no progress" if hung else ""
        self._state = replace(self._state, hung=hung, progress=progress)

    # Drain

    async def _drain(self, child: Child) -> int:
        """Become unready, refuse new connections, wait for requests in flight, stop vLLM: docs/draining.md."""
        self._enter(Phase.DRAINING, "waiting until no new connections arrive")
        self._state = replace(self._state, ready=False)
        await self._drain_step(child, self._draining.until_nobody_comes())
        self._draining.refuse_newcomers()
        if not self._state.hung:
            self._enter(Phase.DRAINING, "waiting for the requests in flight")
            await self._drain_step(child, self._draining.until_idle())
            await self._drain_step(child, self._draining.refuse_all())
        await self._drain_step(child, self._others_drained())
        cut = self._draining.in_flight
        self._enter(Phase.DRAINING, "stopping vLLM")
        self._log(f"stopping vLLM; requests cut by the drain timeout: {cut}" if cut else "idle; stopping vLLM")
        if cut:
            self._write_termination_message(DrainReport(cut).to_json())
        # Requests are not counted without the middleware: vLLM's own --shutdown-timeout waits for them.
        is_drained = self._counters.slots[shared_counters.ATTACHED] or self._skip_drain.is_set()
        extra = 0 if is_drained else self._options.drain_seconds
        await self._stop(child, self._timing.stop_serving_seconds + extra)
        return 0

    async def _others_drained(self) -> None:
        """Wait until vLLM is needed by no other pod of a group."""

    async def _drain_step(self, child: Child, work: Awaitable[None]) -> None:
        """Run a step of the drain. A second SIGINT skips it; if vLLM ends meanwhile, it has failed."""
        task = await first_done(work, child.ended, self._skip_drain.wait())
        if child.ended.done():
            raise Failed(self._classified(child.ended.result()))
        if error := exception_of(task):
            self._log(f"a step of the drain failed and is skipped: {error!r}")

    # Ends

    async def _while_running(self, child: Child, work: Awaitable[T]) -> T:
        """The result of `work`. Raises Failed where vLLM ends first, Terminated on SIGTERM."""
        task = await first_done(work, child.ended, self._terminate.wait(), self._recalled.wait())
        if child.ended.done():
            child.kill_group()
            self._join_log_reader()
            raise Failed(self._classified(child.ended.result()))
        if self._terminate.is_set():
            raise Terminated
        if self._recalled.is_set():
            raise Recalled
        return task.result()

    async def _until_terminated(self, work: Awaitable[T]) -> T:
        task = await first_done(work, self._terminate.wait())
        if self._terminate.is_set():
            raise Terminated
        return task.result()

    async def _abort(self, child: Child, failure: Failure) -> Failed:
        """Stop vLLM because of a failure that the supervisor detected; the exception to raise."""
        self._log(f"{failure.reason}: {failure.message}")
        await self._stop(child, self._timing.stop_loading_seconds)
        return Failed(replace(failure, evidence=failure.evidence or last_words(self._tail())))

    async def _stop(self, child: Child, grace_seconds: float) -> None:
        if not await vllm_process.stop(child, grace_seconds=grace_seconds):
            self._log("vLLM did not end on SIGTERM and was killed")
        self._join_log_reader()

    def _classified(self, ended: Ended) -> Failure:
        return classify(
            End(
                ended.code,
                ended.signal,
                self._state.phase,
                self._serving.memory,
                self._args,
                self._dependencies.environment.get("CUDA_VERSION", ""),
                driver_version(),
            ),
            self._tail(),
        )

    def _report(self, failure: Failure) -> int:
        """Write the failure to the termination message and the log; the exit code, never 0."""
        # vLLM's output may hold credentials.
        failure = replace(failure, phase=failure.phase or self._state.phase, gpu=self._gpu)
        failure = Redactor(self._dependencies.environment).failure(failure)
        self._enter(Phase.FAILED, failure.message)
        self._state = replace(self._state, ready=False, failure=failure)
        self._log(f"{failure.reason}: {failure.message} {failure.remedy}")
        self._write_termination_message(failure.to_json())
        return failure.ends_with

    def _write_termination_message(self, message: str) -> None:
        """Write the container's termination message; errors are logged."""
        try:
            Path(self._options.termination_log).write_text(message, encoding="utf-8")
        except OSError as error:
            self._log(f"{self._options.termination_log} cannot be written: {error}")

    def respond(self, path: str) -> state_server.Reply:
        """The state port's response to GET `path`."""
        now = self._clock()
        self._probed = now if path in (STARTUP_PATH, READY_PATH) else self._probed
        unprobed = self._state.ready and now - self._probed > self._timing.unprobed_seconds
        state = replace(self._state, phase_seconds=now - self._entered, unprobed=unprobed)
        state = self._reported(self._adapters.with_adapters(state))
        return state_server.respond(path, state, self._counters.slots, self._access.keys)

    def _reported(self, state: State) -> State:
        """The state as the state port tells it."""
        return state

    def _on_terminate(self, number: int) -> None:
        if self._terminate.is_set():
            # A restarted kubelet sends a second SIGTERM, which must not cut requests. A second ^C skips the drain.
            self._log(f"received {signal.Signals(number).name} again")
            if number == signal.SIGINT:
                self._skip_drain.set()
        self._terminate.set()
        # Immediately: the next probe and the next response may precede the next step of the drain.
        self._state = replace(self._state, ready=False)
        self._draining.close_connections()

    def _from_log_thread(self, raw: str) -> None:
        """Lines are parsed during the start only: later there are many, without measurements."""
        if not self._starting.is_done:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._on_line, raw)

    def _on_line(self, raw: str) -> None:
        text = log_reader.parse_line(raw).text
        self._starting.on_line(text)
        measured = log_reader.measure(self._state.measured, text)
        progress = log_reader.progress(text) or self._state.progress
        if self._state.phase is Phase.LOADING:
            self._state = replace(self._state, measured=measured, progress=progress)

    def _enter(self, phase: Phase, progress: str) -> None:
        self._entered = self._clock() if phase != self._state.phase else self._entered
        self._state = replace(self._state, phase=phase, progress=progress)
        self._log(f"{phase}: {progress}" if progress else str(phase))

    def _remaining(self) -> float:
        return self._starting.remaining(self._state, self._clock() - self._entered)

    def _tail(self) -> list[str]:
        return list(self._log_reader.tail) if self._log_reader else []

    def _join_log_reader(self) -> None:
        if self._log_reader:
            self._log_reader.join(2)

    def _log(self, text: str) -> None:
        os.write(self._dependencies.output, f"[llmservice] {text}\n".encode())
