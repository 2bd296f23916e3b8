"""The supervisor of one pod of a group: vLLM starts, ends and starts again on all of them together.

Unlike that of a single pod it outlives its vLLM: image, weights and caches stay where they are, and nobody waits for a
kubelet's back-off. The leader's vLLM answers requests, the others' are headless.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace

from llmservice_runtime import contract
from llmservice_runtime.contract import Failure, Phase, State
from llmservice_runtime.failures import failures
from llmservice_runtime.group.members import Group, Leader, Member, member
from llmservice_runtime.group.protocol import Step
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.redact import Redactor
from llmservice_runtime.supervisor import addresses, vllm_process
from llmservice_runtime.supervisor.dependencies import Dependencies
from llmservice_runtime.supervisor.processes import Child
from llmservice_runtime.supervisor.read_ahead import reading_ahead
from llmservice_runtime.supervisor.start_cache import opened
from llmservice_runtime.supervisor.supervisor import Failed, Recalled, Supervisor, Terminated
from llmservice_runtime.supervisor.tasks import cancel_and_wait, in_thread

_PORT_SECONDS = 60.0
"""For the ports of a vLLM that was killed to be free."""
_WAITING = "waiting for the other pods of the group"
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
HOST_IP = "VLLM_HOST_IP"


def group_of(options: ServeOptions, variables: Mapping[str, str]) -> Group:
    """What the pod's environment says of its group. ValueError names the variable that is missing or wrong."""
    rank, leader = variables.get(contract.GROUP_RANK_ENV, ""), variables.get(contract.GROUP_LEADER_ENV, "")
    if not rank.isdecimal() or not int(rank) < options.nodes <= contract.MAX_NODES:
        raise ValueError(
            f"{contract.GROUP_RANK_ENV} is {rank!r}: a pod of a LeaderWorkerSet of {options.nodes} has a number below"
        )
    if not leader:
        raise ValueError(f"{contract.GROUP_LEADER_ENV} is not set: only the pods of a LeaderWorkerSet form a group")
    if not (token := variables.get(contract.GROUP_TOKEN_ENV, "")):
        raise ValueError(f"{contract.GROUP_TOKEN_ENV} is not set: members know each other by it")
    pod, node = variables.get(contract.POD_NAME_ENV, ""), variables.get(contract.NODE_NAME_ENV, "")
    return Group(int(rank), options.nodes, leader, options.group_port, token, options.revision_key, pod=pod, node=node)


def rank_arguments(group: Group, leader_address: str) -> tuple[str, ...]:
    """vLLM's flags that differ between the pods of a group."""
    common = ("--nnodes", str(group.size), "--node-rank", str(group.rank))
    master = ("--master-addr", leader_address, "--master-port", str(contract.MASTER_PORT))
    return (*common, *master, *(("--headless",) if group.rank else ()))


class GroupSupervisor(Supervisor):
    """Supervises the vLLM processes of one pod, one incarnation after another."""

    _member: Member

    def __init__(self, options: ServeOptions, args: Sequence[str], dependencies: Dependencies) -> None:
        super().__init__(options, args, dependencies)
        own = dependencies.pod_addresses()
        self._group = replace(group_of(options, dependencies.environment), address=own[0] if own else "")

    async def _lifecycle(self) -> int:
        self._listen_at_what_there_is()
        self._args += vllm_process.watchdog_arguments(self._args, self._options)
        async with contextlib.AsyncExitStack() as stack:
            try:
                self._member = await stack.enter_async_context(member(self._group, self._log, self._clock))
            except OSError as error:
                raise Failed(failures.state_port_taken(self._group.port, error)) from error
            await self._check()
            await self._fetch()
            while True:
                self._enter(Phase.LOADING, _WAITING)
                number = await self._begins()
                if (code := await self._incarnation(number)) is not None:
                    return code
                self._renew()

    async def _begins(self) -> int:
        """Wait until vLLM is to start; the number of the incarnation. A leader that is never heard is a failure."""
        began, begins = self._clock(), asyncio.ensure_future(self._member.begins())
        try:
            while not begins.done():
                await self._until_terminated(asyncio.wait([begins], timeout=self._timing.poll_seconds))
                if not self._member.has_leader and self._clock() - began >= self._options.start_seconds:
                    raise Failed(failures.leader_unresolved(self._member.awaits, self._options.start_seconds))
            return begins.result()
        finally:
            await cancel_and_wait(begins)

    async def _incarnation(self, number: int) -> int | None:
        """Run vLLM until it ends, or is to end; the supervisor's exit code once the pod is to end."""
        self._log(f"incarnation {number} of the group")
        self._recalled.clear()
        watching = asyncio.ensure_future(self._watch(number))
        cache = await self._until_terminated(opened(self._options, self._timing.volume_seconds, self._log))
        launched = self._launch(cache)
        child = launched.child
        try:
            self._member.report(Step.RUNNING)
            if isinstance(self._member, Leader):
                with reading_ahead(self._flags.model, self._flags.load_format, self._dependencies.cgroup):
                    await self._start(launched, cache)
                self._member.report(Step.RUNNING, started=True)
                return await self._lead(child, self._member)
            await self._while_running(child, in_thread(lambda: launched.start(self._arguments())))
            await self._work(child, number)
        except Failed as failed:
            self._fail(failed.failure)
        except Recalled:
            self._log("vLLM ends with the others of the group")
            await self._stop(child, self._timing.stop_loading_seconds)
        except Terminated:
            await self._stop(child, self._timing.stop_loading_seconds)
            raise
        finally:
            self._state = replace(self._state, ready=False, hung=False)
            child.kill_group()
            await child.ended
            await cancel_and_wait(watching)
            await self._ports_are_free()
        return None

    async def _watch(self, number: int) -> None:
        """Recall this incarnation as soon as the leader orders it, or a pod of the leader's group is to end."""
        await self._member.recalled(number)
        self._recalled.set()

    def _arguments(self) -> tuple[str, ...]:
        return (*self._args, *rank_arguments(self._group, self._member.leader_address))

    def _variables(self) -> Mapping[str, str]:
        own = self._dependencies.pod_addresses()
        if not own:
            return {}
        name = addresses.interface_of(own[0])
        return {HOST_IP: own[0], **(dict.fromkeys(_INTERFACES, name) if name else {})}

    # The leader

    async def _lead(self, child: Child, leader: Leader) -> int | None:
        """Serve until SIGTERM, or until another pod of the group is to end; what is in flight is answered first."""
        async with self._adapters.reconciling(self._timing.adapters_seconds):
            try:
                await self._serve(child)
            except Recalled:
                if not leader.is_leaving:
                    raise
                self._log("a pod of the group is to end")
        code = await self._drain(child)
        leader.recall()
        return code if self._terminate.is_set() else None

    # Other ranks

    async def _work(self, child: Child, number: int) -> None:
        """Until vLLM ends or is to end. On SIGTERM it goes on until the leader's requests are answered."""
        self._enter(Phase.SERVING, "")
        try:
            while True:
                await self._while_running(child, asyncio.sleep(self._timing.watch_seconds))
        except Terminated:
            self._member.report(Step.LEAVING)
            self._enter(Phase.DRAINING, "waiting for the leader's requests")
            grace = self._options.propagation_seconds + self._options.drain_seconds
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._member.recalled(number), grace)
            raise

    # All

    def _fail(self, failure: Failure) -> None:
        failure = replace(failure, phase=failure.phase or self._state.phase, gpu=self._gpu)
        failure = Redactor(self._dependencies.environment).failure(failure)
        self._log(f"{failure.reason}: {failure.message} {failure.remedy}")
        self._member.report(Step.FAILED, failure=failure)

    def _reported(self, state: State) -> State:
        """Ready with the whole group only."""
        is_worker_ready = self._group.rank > 0 and state.phase is Phase.SERVING
        order = self._member.order if hasattr(self, "_member") else None
        if state.progress == _WAITING and order:
            state = replace(state, progress=self._member.awaits or _WAITING)
        is_ready = bool((state.ready or is_worker_ready) and order and order.ready)
        # The kubelet asks for readiness only once the pod has started, which of a worker nothing else says.
        state = replace(state, ready=is_ready, started=state.started or (is_ready and self._group.rank > 0))
        return replace(state, group=self._member.told()) if order and not self._group.rank else state

    async def _ports_are_free(self) -> None:
        """A killed vLLM's processes may hold them for a moment; the next one would fail to listen."""
        deadline = self._loop.time() + _PORT_SECONDS
        ports = (self._flags.port, contract.MASTER_PORT) if not self._group.rank else ()
        for port in ports:
            while not _is_free(port) and self._loop.time() < deadline:  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(self._timing.health_seconds)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError:
            return False
    return True
