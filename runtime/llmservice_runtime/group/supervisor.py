"""The supervisor of one pod of a group: vLLM starts, ends and starts again on all of them together.

Unlike that of a single pod it outlives its vLLM: image, weights and caches stay where they are, and nobody waits for a
kubelet's back-off. The leader's vLLM answers requests; the others' are headless, or with hybrid balancing answer too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace

from llmservice_runtime import contract
from llmservice_runtime.contract import Failure, Phase, State
from llmservice_runtime.failures import failures
from llmservice_runtime.group.members import Group, Leader, Member, Own, member
from llmservice_runtime.group.protocol import Order, Step
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.preflight.preflight import vllm_version
from llmservice_runtime.redact import Redactor
from llmservice_runtime.supervisor import addresses, start_cache, vllm_process
from llmservice_runtime.supervisor.dependencies import Dependencies
from llmservice_runtime.supervisor.processes import Child
from llmservice_runtime.supervisor.read_ahead import reading_ahead
from llmservice_runtime.supervisor.start_cache import StartCache
from llmservice_runtime.supervisor.starting import Start
from llmservice_runtime.supervisor.state_server import Reply
from llmservice_runtime.supervisor.supervisor import Failed, Recalled, Supervisor, Terminated
from llmservice_runtime.supervisor.tasks import cancel_and_wait, in_thread
from llmservice_runtime.supervisor.vllm_process import Launched

_LEFT_SECONDS = 60.0
"""For the processes of a vLLM that was killed to be gone, and its ports to be free."""
_LATER_SECONDS = 2.0
"""By which another pod may end its drain after this one, which began it when it heard that a pod is to end."""
_WAITING = "waiting for the other pods of the group"
_GLOO_INTERFACE, _NCCL_INTERFACE = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
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
    given = (int(rank), options.nodes, leader, options.group_port, token, options.revision_key)
    return Group(*given, pod=pod, node=node, is_hybrid=options.data_parallel_mode == contract.HYBRID)


def rank_arguments(group: Group, leader_address: str, engines: int) -> tuple[str, ...]:
    """vLLM's flags that differ between the pods of a group.

    With several data-parallel engines each pod runs its share of them, and the leader sends each a part of the requests
    (vLLM's internal load balancing), or each pod answers requests by its own engines (hybrid; with one engine on each
    vLLM makes it external balancing by itself). Else one engine is spread over all pods.
    """
    headless = ("--headless",) if group.is_headless else ()
    if engines > 1:
        own = engines // group.size
        where = (
            "--data-parallel-address",
            leader_address,
            "--data-parallel-rpc-port",
            str(contract.DATA_PARALLEL_PORT),
        )
        first = ("--data-parallel-start-rank", str(group.rank * own)) if group.rank else ()
        hybrid = ("--data-parallel-hybrid-lb",) if group.is_hybrid else ()
        return ("--data-parallel-size-local", str(own), *where, *first, *hybrid, *headless)
    common = ("--nnodes", str(group.size), "--node-rank", str(group.rank))
    master = ("--master-addr", leader_address, "--master-port", str(contract.MASTER_PORT))
    return (*common, *master, *headless)


def _address_of(dependencies: Dependencies) -> str:
    """At which the others reach this pod: of several, that which its name means, and not that of the default route."""
    given = dependencies.environment.get(contract.POD_IP_ENV, "")
    return given or next(iter(dependencies.pod_addresses()), "")


class GroupSupervisor(Supervisor):
    """Supervises the vLLM processes of one pod, one incarnation after another."""

    _member: Member

    def __init__(self, options: ServeOptions, args: Sequence[str], dependencies: Dependencies) -> None:
        group = group_of(options, dependencies.environment)
        # Whatever else runs in this container must not be able to stop the group.
        variables = {name: text for name, text in dependencies.environment.items() if name != contract.GROUP_TOKEN_ENV}
        super().__init__(options, args, replace(dependencies, environment=variables))
        self._group = replace(group, address=_address_of(dependencies))
        # What vLLM compiles, and which processes it starts, differs between ranks.
        self._of_rank = replace(options, revision_key=f"{options.revision_key}, rank {group.rank}")
        self._unsettled: StartCache | None = None
        """Of a start that failed, until it is known on which rank that happened."""

    async def _lifecycle(self) -> int:
        self._listen_at_what_there_is()
        self._args += vllm_process.watchdog_arguments(self._args, self._options)
        version, build = await self._until_terminated(in_thread(lambda: (vllm_version(), start_cache.build())))
        self._group = replace(self._group, vllm_version=version or "", build=build)
        own = Own(self._log, self._clock, self._progress, lambda: self._draining.in_flight)
        async with contextlib.AsyncExitStack() as stack:
            try:
                self._member = await stack.enter_async_context(member(self._group, own))
            except OSError as error:
                raise Failed(failures.state_port_taken(self._group.port, error)) from error
            return await self._member.alongside(self._incarnations())

    async def _incarnations(self) -> int:
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
        """Run vLLM until it ends, or is to end, and nothing of it is left; the supervisor's exit code once the pod is
        to end."""
        self._log(f"incarnation {number} of the group")
        self._settle()
        if self._state.started:  # the kubelet's limit is over
            self._container_began = self._clock()
        self._starting = Start(self._options, self._dependencies, self._container_began)
        self._state = self._starting.with_budget(self._state)
        self._recalled.clear()
        watching = asyncio.ensure_future(self._watch(number))
        child: Child | None = None
        try:
            cache = await self._opened()
            launched = self._launch(cache)
            child = launched.child
            self._member.report(Step.RUNNING, started=self._group.is_headless)
            if self._group.is_headless:
                await self._work(launched, cache)
            elif (code := await self._answer(launched, cache, number)) is not None:
                return code
        except Failed as failed:
            self._fail(failed.failure)
        except Recalled:
            assert child is not None
            self._log("vLLM ends with the others of the group")
            self._recall(number)
            cache.mark_ended()
            await self._stop(child, self._timing.stop_loading_seconds)
        except Terminated:
            await self._leave(number)
            if child is not None:
                cache.mark_ended()
                await self._stop(child, self._timing.stop_loading_seconds)
            raise
        finally:
            self._state = replace(self._state, ready=False, hung=False, slow=False)
            if child is not None:
                child.kill_group()
                await child.ended
            await cancel_and_wait(watching)
        if child is not None:
            await self._until_terminated(self._nothing_left(child))
        return None

    async def _watch(self, number: int) -> None:
        """Recall this incarnation as soon as the leader orders it, or a pod of the leader's group is to end."""
        await self._member.recalled(number)
        self._recalled.set()

    def _recall(self, number: int) -> None:
        """All others end vLLM too."""
        if isinstance(self._member, Leader):
            self._member.recall(number)

    async def _leave(self, number: int) -> None:
        """This pod is to end. A worker's vLLM goes on until the leader's requests are answered."""
        self._recall(number)
        self._member.report(Step.LEAVING)
        if self._group.rank:
            self._enter(Phase.DRAINING, "waiting for the leader's requests")
            grace = self._options.propagation_seconds + self._options.drain_seconds
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._member.recalled(number), grace)

    @property
    def _command(self) -> Sequence[str]:
        return self._dependencies.headless if self._group.is_headless else super()._command

    def _arguments(self) -> tuple[str, ...]:
        return (*self._args, *rank_arguments(self._group, self._member.leader_address, self._flags.data_parallel_size))

    async def _check(self) -> None:
        named = self._named_interface
        lacking = named if named and not addresses.of_interface(named) else ""
        if lacking or not self._group.address:
            there = [name for _, name in socket.if_nameindex() if addresses.of_interface(name)]
            raise Failed(failures.interface_without_address(lacking, there))
        await super()._check()

    @property
    def _named_interface(self) -> str:
        """spec.parallelism.network.interface; empty without."""
        return self._dependencies.environment.get(contract.INTERFACE_ENV, "")

    def _variables(self) -> Mapping[str, str]:
        if self._named_interface:
            return {HOST_IP: addresses.of_interface(self._named_interface)}
        own = self._group.address
        if not own:
            return {}
        name = addresses.interface_of(own)
        # NCCL takes a name without "=" for a prefix.
        names = {_GLOO_INTERFACE: name, _NCCL_INTERFACE: f"={name}"} if name else {}
        return {HOST_IP: own, **names}

    # Ranks with an API

    async def _answer(self, launched: Launched, cache: StartCache, number: int) -> int | None:
        """Serve until SIGTERM, or until another pod of the group is to end; what is in flight is answered first."""
        child = launched.child
        with reading_ahead(self._flags.model, self._flags.load_format, self._dependencies.cgroup):
            await self._start(launched, cache)
        self._member.report(Step.RUNNING, started=True)
        async with self._adapters.reconciling(self._timing.adapters_seconds):
            try:
                await self._serve(child)
            except Recalled:
                if not (self._member.is_leaving and self._member.is_to_run(number)):
                    raise
                self._log("a pod of the group is to end")
                self._draining.close_connections()
        if self._group.is_hybrid and self._terminate.is_set():
            self._member.report(Step.LEAVING, started=True)
        code = await self._drain(child)
        self._recall(number)
        return code if self._terminate.is_set() else None

    async def _others_drained(self) -> None:
        """The engines of all pods answer a request together, also one of another pod. A leader alone needs no other."""
        if not self._group.is_hybrid:
            return
        self._enter(Phase.DRAINING, "waiting for the requests of the other pods")
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._member.drained(), self._draining.seconds_left + _LATER_SECONDS)
        self._recall(self._member.begun)

    # Ranks without one

    async def _work(self, launched: Launched, cache: StartCache) -> None:
        """Until vLLM ends or is to end."""
        child = launched.child
        self._enter(Phase.LOADING, "starting vLLM")
        try:
            await self._while_running(child, in_thread(lambda: launched.start(self._arguments())))
            await self._while_running(child, self._member.ready())
        except Failed:
            self._on_failed_start(cache)
            raise
        cache.mark_served()
        self._starting.is_done = True
        self._state = self._starting.with_budget(replace(self._state, started=True))
        self._enter(Phase.SERVING, "")
        await self._while_running(child, self._terminate.wait())

    # All

    def _fail(self, failure: Failure) -> None:
        failure = replace(failure, phase=failure.phase or self._state.phase, gpu=self._gpu)
        failure = Redactor(self._dependencies.environment).failure(failure)
        self._log(f"{failure.reason}: {failure.message} {failure.remedy}")
        self._member.report(Step.FAILED, failure=failure)

    async def _opened(self) -> StartCache:
        work = start_cache.opened(self._of_rank, self._timing.volume_seconds, self._log)
        return await self._until_terminated(work)

    def _on_failed_start(self, cache: StartCache) -> None:
        self._unsettled = cache

    def _settle(self) -> None:
        """The files of a start that failed because another rank did are used again."""
        if self._unsettled is not None and self._member.order.blamed == self._group.rank:
            self._unsettled.mark_failed()
        elif self._unsettled is not None:
            self._unsettled.mark_ended()
        self._unsettled = None

    def _progress(self) -> str:
        is_starting = self._state.phase in (Phase.PREFLIGHT, Phase.FETCHING, Phase.LOADING, Phase.SMOKE)
        return self._state.progress if is_starting and self._state.progress != _WAITING else ""

    def respond(self, path: str) -> Reply:
        reply = super().respond(path)
        # The kubelet would start the containers of a group that never started again and again, with a budget of five
        # restarts each time.
        is_kept = path == contract.STARTUP_PATH and (order := self._order) is not None and order.is_exhausted
        return replace(reply, status=200) if is_kept else reply

    def _reported(self, state: State) -> State:
        """Ready with the whole group only."""
        if (order := self._order) is None:
            return replace(state, ready=False)
        if state.progress == _WAITING:
            state = replace(state, progress=self._member.awaits or _WAITING)
        elif state.phase is Phase.LOADING and (slowest := self._member.slowest):
            state = replace(state, progress=f"{state.progress}; {slowest}"[: contract.MAX_TEXT])
        is_worker_ready = self._group.is_headless and state.phase is Phase.SERVING
        state = replace(state, ready=(state.ready or is_worker_ready) and order.ready)
        return replace(state, group=self._member.told())

    @property
    def _order(self) -> Order | None:
        """None before there is a member."""
        return self._member.order if hasattr(self, "_member") else None

    async def _nothing_left(self, child: Child) -> None:
        """Wait until nothing is left of a vLLM that was killed: the next one would fail to listen, or to get memory.
        Failed where something stays."""
        deadline = self._loop.time() + _LEFT_SECONDS
        while left := self._left(child):
            if self._loop.time() >= deadline:
                raise Failed(failures.engine_left_behind(left, _LEFT_SECONDS))
            await asyncio.sleep(self._timing.health_seconds)

    def _left(self, child: Child) -> str:
        """What is left of it; empty once nothing is."""
        if child.has_group:
            return "processes of it are still there"
        ports = (self._flags.port, contract.MASTER_PORT, contract.DATA_PARALLEL_PORT)
        taken = [port for port in ports if not _is_free(port)]
        return f"port {taken[0]} is still taken" if taken else ""


def _is_free(port: int) -> bool:
    return all(_can_listen(family, port) for family in (socket.AF_INET, socket.AF_INET6))


def _can_listen(family: socket.AddressFamily, port: int) -> bool:
    """True also where there are no addresses of this family."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            tried.bind(("", port))
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True
