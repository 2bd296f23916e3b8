"""Two real supervisors of one group on this machine, with stand-ins for vLLM."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from llmservice_runtime import contract
from llmservice_runtime.adapter_list import Adapter, to_json
from llmservice_runtime.contract import FailureReason, GroupState, Phase, State
from llmservice_runtime.group import members
from llmservice_runtime.group.protocol import Channel, Hello, Order
from llmservice_runtime.group.supervisor import rank_arguments
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor import start_cache
from llmservice_runtime.supervisor.client import http_request
from llmservice_runtime.supervisor.start_cache import StartCache
from llmservice_vllm.flags import Match
from llmservice_vllm.versions import flag_table

from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.stand_in.behaviour import Behaviour
from tests.support.stand_in.command_line import parse
from tests.unit.runtime.adapter_folder import write_adapter
from tests.unit.runtime.runtime_harness import NEVER, WELL, Server, supervised


@dataclass
class Group:
    leader: Server
    worker: Server
    another_worker: Callable[[], AbstractAsyncContextManager[Server]]

    async def ready(self) -> None:
        await self.leader.ready()
        await self.worker.ready()

    async def past_back_off(
        self, until: Callable[[GroupState], bool] = lambda group: not group.waits_seconds, longer: float = 0
    ) -> None:
        """Once the first incarnation has failed and this is so. Back-offs are over by the clocks, once all wait."""
        while True:
            state = await self.leader.until(lambda state: state.group is not None and state.group.incarnation > 1)
            assert state.group is not None
            if until(state.group):
                return
            if state.group.waits_seconds and all(each.step == "Waiting" for each in state.group.members):
                for each in (self.leader, self.worker):
                    each.jump(state.group.waits_seconds + longer)
            await asyncio.sleep(0.1)


@asynccontextmanager
async def group(
    folder: Path,
    behaviour: Behaviour = WELL,
    *,
    worker: Behaviour | None = None,
    further: Mapping[str, str] = {},
    **changed: object,
) -> AsyncIterator[Group]:
    """`worker`: how its vLLM behaves where that is another way. `further`: variables of both."""
    group_port = free_port()

    def started(rank: int) -> AbstractAsyncContextManager[Server]:
        variables = {
            contract.GROUP_RANK_ENV: str(rank),
            contract.GROUP_LEADER_ENV: "127.0.0.1",
            contract.GROUP_TOKEN_ENV: "t",
            contract.POD_NAME_ENV: f"pod-{rank}",
            **further,
        }
        own = Path(tempfile.mkdtemp(dir=folder))
        return supervised(
            own, (rank and worker) or behaviour, variables=variables, pod_addresses=loopback,
            nodes=2, group_port=group_port, revision_key="r", **changed,  # type: ignore[arg-type]
        )  # fmt: skip

    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(started(rank)) for rank in range(2)]
        yield Group(members[0], members[1], lambda: started(1))


def loopback() -> tuple[str, ...]:
    return ("127.0.0.1",)


OF_RANKS: dict[str, tuple[int, int, int, str]] = {
    # nodes, rank, data-parallel engines: vLLM's flags; "hybrid" stands for the flag itself
    "the leader of one engine": (
        2, 0, 1, "--nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29501",
    ),
    "a worker of one engine": (
        3, 2, 1, "--nnodes 3 --node-rank 2 --master-addr 10.0.0.1 --master-port 29501 --headless",
    ),
    "the leader of several engines": (
        2, 0, 4, "--data-parallel-size-local 2 --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 29550",
    ),
    "a worker of several engines": (
        2, 1, 4, "--data-parallel-size-local 2 --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 29550 "
        "--data-parallel-start-rank 2 --headless",
    ),
    "the leader of several engines, each node with an API": (
        2, 0, 4, "--data-parallel-size-local 2 --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 29550 "
        "--data-parallel-hybrid-lb",
    ),
    "a worker of several engines, each node with an API": (
        2, 1, 4, "--data-parallel-size-local 2 --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 29550 "
        "--data-parallel-start-rank 2 --data-parallel-hybrid-lb",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "rank", "engines", "expected"), OF_RANKS.values(), ids=OF_RANKS.keys())
def test_vllms_flags_of_a_rank(nodes: int, rank: int, engines: int, expected: str) -> None:
    is_hybrid = "--data-parallel-hybrid-lb" in expected
    of_group = members.Group(rank, nodes, "leader", 8083, "t", is_hybrid=is_hybrid)
    given = rank_arguments(of_group, "10.0.0.1", engines)
    assert given == tuple(expected.split())
    known = [flag_table("0.32").resolve(word) for word in given if word.startswith("--")]
    assert all(isinstance(each, Match) for each in known)


def test_the_stand_in_refuses_what_vllm_refuses_of_them() -> None:
    of_two = ("--data-parallel-size", "4", *OF_RANKS["a worker of several engines, each node with an API"][3].split())
    found = parse(of_two, {}).ranks
    assert (found.nodes, found.rank, found.is_hybrid, found.is_headless) == (2, 1, True, False)
    with pytest.raises(AssertionError, match="not applicable in headless mode"):
        parse((*of_two, "--headless"), {})


@pytest.mark.parametrize("flags", [(), ("--data-parallel-size", "2")], ids=["one engine", "an engine on each"])
async def test_they_serve_together(tmp_path: Path, flags: tuple[str, ...]) -> None:
    async with group(tmp_path, flags=flags) as found:
        await found.ready()
        assert (await found.leader.complete()).status == 200
        for path in ("/startupz", "/readyz"):
            assert [await each.probe(path) for each in (found.leader, found.worker)] == [200, 200]


HYBRID: dict[str, object] = {"flags": ("--data-parallel-size", "2"), "data_parallel_mode": "hybrid"}


async def test_with_hybrid_balancing_each_pod_answers_and_all_end_and_come_back_together(tmp_path: Path) -> None:
    async with group(tmp_path, **HYBRID) as found:  # type: ignore[arg-type]
        await found.ready()
        pods = (found.leader, found.worker)
        assert [(await each.complete()).status for each in pods] == [200, 200]
        os.kill(found.leader.engine(), signal.SIGKILL)
        for each in pods:
            await each.until(lambda state: not state.ready)
        await found.leader.logged("of the group failed: rank 0 (pod-0): ")
        await found.past_back_off()
        await found.ready()
        assert [(await each.complete()).status for each in pods] == [200, 200]


async def test_a_pod_that_answers_is_ready_once_all_of_them_have_answered(tmp_path: Path) -> None:
    async with group(tmp_path, worker=Behaviour(first_request="hang"), **HYBRID) as found:  # type: ignore[arg-type]
        await found.leader.until(lambda state: state.phase is Phase.SERVING)
        await found.worker.until(lambda state: state.phase is Phase.SMOKE)
        assert [await each.probe("/readyz") for each in (found.leader, found.worker)] == [503, 503]


@pytest.mark.parametrize("leaving", [0, 1], ids=["the leader", "a worker"])
async def test_with_hybrid_balancing_all_answer_before_one_ends(tmp_path: Path, leaving: int) -> None:
    async with group(tmp_path, **HYBRID) as found:  # type: ignore[arg-type]
        await found.ready()
        leaves, stays = (found.leader, found.worker)[:: -1 if leaving else 1]
        stream, before = await stays.stream(), len(stays.log)
        leaves.signal()
        await leaves.until(lambda state: state.progress == "waiting for the requests of the other pods")
        await stays.until(lambda state: state.progress == "waiting for the requests in flight")
        assert [await each.probe("/readyz") for each in (leaves, stays)] == [503, 503]
        stays.release()
        assert "[DONE]" in (await stream).body
        assert await leaves.ended() == 0
        await stays.until(lambda state: state.phase is Phase.LOADING)
        assert not [line for line in stays.log[before:] if "ailed" in line]
        stays.signal()
        assert await stays.ended() == 0


async def test_a_worker_whose_vllm_is_killed_while_idle_takes_the_group_down_and_all_come_back(tmp_path: Path) -> None:
    async with group(tmp_path) as found:
        await found.ready()
        os.kill(found.worker.engine(), signal.SIGKILL)
        state = await found.leader.until(lambda state: state.group is not None and state.group.cause is not None)
        assert state.group is not None
        assert state.group.cause is not None
        assert (state.ready, state.group.cause.rank, state.group.cause.pod) == (False, 1, "pod-1")
        await found.past_back_off()
        await found.ready()
        assert (await found.leader.complete()).status == 200
        state = await found.leader.until(lambda state: state.group is not None and not state.group.members[1].progress)
        assert state.group is not None
        assert (state.group.incarnation, state.group.restarts, state.group.cause) == (2, 1, None)
        assert [(each.rank, each.step, each.pod) for each in state.group.members] == [
            (0, "Running", "pod-0"),
            (1, "Running", "pod-1"),
        ]


async def test_one_that_is_to_end_lets_the_leader_answer_first(tmp_path: Path) -> None:
    async with group(tmp_path) as found:
        await found.ready()
        stream = found.leader.hold("a")
        found.worker.signal()
        assert (await stream).status == 200
        assert await found.worker.ended() == 0
        await found.leader.until(lambda state: state.phase is Phase.LOADING)
        found.leader.signal()
        assert await found.leader.ended() == 0


async def test_one_that_is_to_end_lets_pooled_clients_connect_elsewhere_first(tmp_path: Path) -> None:
    async with group(tmp_path, propagation_seconds=NEVER) as found:
        await found.ready()
        reader, writer = await asyncio.open_connection("127.0.0.1", found.leader.port)
        body = b'{"model":"m","prompt":"a"}'
        for word in (b"", b"connection: close"):
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            head = await reader.readuntil(b"\r\n\r\n")
            assert word in head
            assert head.startswith(b"HTTP/1.1 200")
            if not word:
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))
                found.worker.signal()
                await found.leader.until(lambda state: state.phase is Phase.DRAINING)
        writer.close()


async def test_one_that_is_to_end_while_the_group_loads_is_no_failure(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for rank in range(2):
        started(cache, rank).mark_served()
    stalled = Behaviour(shards=2, stalls_at=1)
    async with group(tmp_path, stalled, worker=WELL, start_cache=str(cache)) as found:
        await found.leader.until(lambda state: state.progress == "loading the weights: 50%")
        loading = await found.worker.until(lambda state: state.progress != "")
        assert (loading.phase, loading.started) == (Phase.LOADING, False), "it serves once its leader does"
        found.worker.signal()
        steps = set[str]()

        def is_recalled(state: State) -> bool:
            assert state.group is not None
            steps.add(state.group.members[0].step)
            return state.group.incarnation == 2

        state = await found.leader.until(is_recalled)
        assert await found.worker.ended() == 0
        assert state.group is not None
        assert (state.group.restarts, state.group.cause) == (0, None)
        assert "Failed" not in steps
        await found.leader.logged("vLLM ends with the others of the group")
        await found.leader.until(lambda state: state.progress == "waiting for rank 1 of the group")
        assert [started(cache, rank).state for rank in range(2)] == ["Reused", "Reused"]


def started(cache: Path, rank: int) -> StartCache:
    """The files of a start of this rank."""
    return StartCache.open(ServeOptions(start_cache=str(cache), revision_key=f"r, rank {rank}", nodes=2), print)


async def test_a_start_that_fails_on_a_worker_is_told_and_costs_the_leader_no_files(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for rank in range(2):
        started(cache, rank).mark_served()
    later = Behaviour(start_seconds=1, exit_loading=4)
    async with group(tmp_path, later, worker=Behaviour(exit_loading=3), start_cache=str(cache)) as found:
        state = await found.leader.until(lambda state: state.group is not None and state.group.cause is not None)
        assert state.group is not None
        assert state.group.cause is not None
        cause = state.group.cause
        assert (cause.rank, cause.pod, cause.failure.reason) == (1, "pod-1", FailureReason.STARTUP_FAILED)
        await found.leader.logged("StartupFailed: vLLM ended with exit code 4")
        await found.past_back_off()
        await found.leader.logged(": Reused", times=2)
        await found.worker.logged(": New")


async def test_files_of_a_start_that_served_are_used_by_the_same_rank_again(tmp_path: Path) -> None:
    async with group(tmp_path, start_cache=str(tmp_path / "cache")) as found:
        await found.ready()
        os.kill(found.worker.engine(), signal.SIGKILL)
        await found.leader.until(lambda state: not state.ready)
        await found.past_back_off()
        await found.ready()
        for each in (found.leader, found.worker):
            assert [line.split(": ")[-1] for line in each.log if "start cache" in line] == ["New\n", "Reused\n"]
    assert len(list((tmp_path / "cache").iterdir())) == 2


async def test_a_later_start_is_watched_as_the_first_and_has_its_adapters(tmp_path: Path) -> None:
    listed = tmp_path / "adapters.json"
    path = write_adapter(tmp_path / "source" / "one", rank=8)
    listed.write_text(to_json([Adapter("one", f"pvc://claim/{path}", str(path))]))
    stalled = Behaviour(shards=2, stalls_at=1)
    async with group(tmp_path, stalled, worker=WELL, adapters_file=str(listed)) as found:
        for _ in range(2):
            state = await found.leader.until(lambda state: state.progress == "loading the weights: 50%")
            assert state.start_budget_seconds == NEVER
            assert state.adapters == ()
            await found.leader.until(lambda state: first_progress(state) == "loading the weights: 50%")
            found.leader.release()
            state = await found.leader.ready()
            assert state.model_names == ("m", "one")
            page = await http_request(found.leader.port, "/v1/models", timeout=PATIENCE)
            assert '"one"' in page.body
            await found.worker.ready()
            os.kill(found.worker.engine(), signal.SIGKILL)
            await found.leader.until(lambda state: not state.ready)
            # Whoever waits for another pod may wait for longer than a start may take.
            await found.past_back_off(longer=contract.START_CEILING_SECONDS)


def first_progress(state: State) -> str:
    assert state.group is not None
    return state.group.members[0].progress


def beside(engine: int) -> subprocess.Popen[bytes]:
    """One more process of this vLLM, which after its end stays until it is waited for, as one does that a device keeps
    from ending."""
    return subprocess.Popen(("sleep", "infinity"), process_group=engine)


async def test_it_starts_again_once_nothing_of_the_last_vllm_is_left(tmp_path: Path) -> None:
    async with group(tmp_path) as found:
        await found.ready()
        engine = found.worker.engine()
        left = beside(engine)
        with socket.create_server(("127.0.0.1", found.worker.port)):
            os.kill(engine, signal.SIGKILL)
            await found.leader.until(lambda state: state.progress.startswith("the group starts again in "))
            found.leader.jump(10)
            await found.leader.until(lambda state: state.progress.startswith("waiting until rank 1 (Failed"))
            assert await asyncio.to_thread(left.wait, PATIENCE) == -signal.SIGKILL
            failure = await found.worker.failed(jump=NEVER)
    assert failure.reason is FailureReason.ENGINE_DIED
    assert failure.message.startswith(f"60 s after vLLM was killed port {found.worker.port} is still taken")


async def test_processes_that_stay_end_the_supervisor(tmp_path: Path) -> None:
    async with group(tmp_path) as found:
        await found.ready()
        left = beside(found.worker.engine())
        os.kill(found.worker.engine(), signal.SIGKILL)
        failure = await found.worker.failed(jump=NEVER)
        left.wait()
    assert failure.message.startswith("60 s after vLLM was killed processes of it are still there")


def environment_of(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_text()


async def test_a_pod_with_other_packages_is_told_so(tmp_path: Path) -> None:
    async with group(tmp_path) as found:
        await found.leader.until(lambda state: state.group is not None)
        reader, writer = await asyncio.open_connection("127.0.0.1", found.leader.options.group_port)
        channel = await Channel.opened(reader, writer, "t", is_leader=False)
        await channel.send(Hello(1, 2, "127.0.0.1", "r", "i", build="f00d"))
        refused = (await channel.receive(Order)).refused
        writer.close()
    assert refused == f"rank 1 has packages f00d, and the leader has {start_cache.build()}"


async def test_the_token_is_the_supervisors_alone(tmp_path: Path) -> None:
    seen = tmp_path / "preflight"
    async with group(tmp_path, preflight=("sh", "-c", f"env >> {seen}")) as found:
        await found.ready()
        for each in (found.leader, found.worker):
            variables = environment_of(each.engine())
            assert contract.POD_NAME_ENV in variables
            assert contract.GROUP_TOKEN_ENV not in variables
    assert contract.POD_NAME_ENV in seen.read_text()
    assert contract.GROUP_TOKEN_ENV not in seen.read_text()


async def test_the_containers_of_a_group_that_gave_up_stay(tmp_path: Path) -> None:
    """The kubelet would start them again, with a budget of five restarts more, for ever."""
    async with group(tmp_path, worker=Behaviour(exit_loading=3)) as found:
        await found.leader.until(lambda state: state.group is not None)
        assert await found.leader.probe("/startupz") == 503
        await found.past_back_off(lambda group: group.is_exhausted)
        for each in (found.leader, found.worker):
            state = await each.until(lambda state: state.progress == "the group has used up its restarts")
            assert not state.started
            assert [await each.probe(path) for path in ("/startupz", "/readyz")] == [200, 503]


async def test_a_worker_that_dies_under_a_stream_costs_that_stream_and_nothing_after_it(tmp_path: Path) -> None:
    async with group(tmp_path) as found:
        await found.ready()
        stream = await found.leader.stream()
        os.kill(found.worker.engine(), signal.SIGKILL)
        # It ends early: with a broken connection, an error, or the reason "abort", by who notices the death first.
        with contextlib.suppress(OSError):
            assert '"finish_reason":"length"' not in (await stream).body
        await found.leader.logged("incarnation 1 of the group failed: rank 1 (pod-1): ")
        await found.leader.logged("; requests in flight: 1\n")
        await found.past_back_off()
        await found.ready()
        assert (await found.leader.complete()).status == 200


async def test_a_leader_whose_vllm_dies_comes_back_with_its_worker(tmp_path: Path) -> None:
    async with group(tmp_path) as found:
        await found.ready()
        worker = found.worker.engine()
        os.kill(found.leader.engine(), signal.SIGKILL)
        await found.leader.until(lambda state: not state.ready)
        await found.past_back_off()
        await found.ready()
        assert found.worker.engine() != worker
        assert (await found.leader.complete()).status == 200


async def test_a_supervisor_that_is_killed_and_started_again_joins_the_next_incarnation(tmp_path: Path) -> None:
    async with group(tmp_path) as found, AsyncExitStack() as stack:
        await found.ready()
        found.worker.signal(signal.SIGKILL)
        await found.leader.until(lambda state: not state.ready)
        again = await stack.enter_async_context(found.another_worker())
        await found.leader.until(lambda state: state.progress.startswith("the group starts again in "))
        found.leader.jump(10)
        await again.ready()
        await found.leader.ready()
        assert (await found.leader.complete()).status == 200


async def test_a_worker_says_that_it_does_not_find_its_leader_and_ends_after_the_starts_budget(tmp_path: Path) -> None:
    variables = {
        contract.GROUP_RANK_ENV: "1",
        contract.GROUP_LEADER_ENV: "no-such-leader.invalid",
        contract.GROUP_TOKEN_ENV: "t",
    }
    given = {"nodes": 2, "group_port": free_port(), "revision_key": "r"}
    async with supervised(tmp_path, variables=variables, pod_addresses=loopback, **given) as worker:  # type: ignore[arg-type]
        state = await worker.until(lambda state: "no-such-leader.invalid" in state.progress)
        assert state.progress.startswith("waiting for the leader: ")
        failure = await worker.failed(jump=NEVER)
    assert failure.reason is contract.FailureReason.LEADER_ADDRESS_UNRESOLVED
    assert "no-such-leader.invalid" in failure.message
    assert "DNS" in failure.remedy


async def test_a_leader_names_the_ranks_that_it_waits_for(tmp_path: Path) -> None:
    variables = {contract.GROUP_RANK_ENV: "0", contract.GROUP_LEADER_ENV: "127.0.0.1", contract.GROUP_TOKEN_ENV: "t"}
    given = {"nodes": 3, "group_port": free_port(), "revision_key": "r"}
    async with supervised(tmp_path, variables=variables, pod_addresses=loopback, **given) as leader:  # type: ignore[arg-type]
        await leader.until(lambda state: state.progress == "waiting for rank 1, 2 of the group")
        leader.jump(10 * NEVER)
        assert (await leader.until(lambda state: state.group is not None)).phase is Phase.LOADING, "it waits for ever"


async def test_while_vllm_loads_the_leader_says_which_rank_is_behind(tmp_path: Path) -> None:
    async with group(tmp_path, Behaviour(start_seconds=5), worker=Behaviour(start_seconds=120)) as found:
        state = await found.leader.until(lambda state: "; rank 1 is behind (" in state.progress)
    assert state.phase is Phase.LOADING


async def test_an_interface_that_the_pod_has_not_ends_the_start_with_those_that_it_has(tmp_path: Path) -> None:
    variables = {
        contract.GROUP_RANK_ENV: "0",
        contract.GROUP_LEADER_ENV: "127.0.0.1",
        contract.GROUP_TOKEN_ENV: "t",
        contract.INTERFACE_ENV: "none7",
    }
    given = {"nodes": 2, "group_port": free_port(), "revision_key": "r"}
    async with supervised(tmp_path, variables=variables, pod_addresses=loopback, **given) as leader:  # type: ignore[arg-type]
        failure = await leader.failed()
    assert failure.reason is FailureReason.INVALID_CONFIGURATION
    assert failure.message.startswith("The pod has no network interface none7 with an address; its")
    assert "spec.parallelism.network.interface" in failure.remedy


@pytest.mark.parametrize("named", [{}, {contract.INTERFACE_ENV: "lo"}], ids=["", "beside a named interface"])
async def test_a_pod_without_an_address_starts_no_vllm(tmp_path: Path, named: dict[str, str]) -> None:
    """vLLM would be told an empty address of its leader."""
    variables = {contract.GROUP_RANK_ENV: "0", contract.GROUP_LEADER_ENV: "127.0.0.1", contract.GROUP_TOKEN_ENV: "t"}
    variables |= named
    given = {"nodes": 2, "group_port": free_port(), "revision_key": "r"}
    async with supervised(tmp_path, variables=variables, pod_addresses=tuple, **given) as leader:  # type: ignore[arg-type]
        failure = await leader.failed()
    assert failure.message.startswith("The pod has no address that other pods reach; its interfaces with one: lo")


async def test_without_a_named_interface_vllm_uses_the_one_with_the_pods_address(tmp_path: Path) -> None:
    async with group(tmp_path) as found:
        await found.ready()
        given = environment_of(found.worker.engine()).split("\0")
    assert {"VLLM_HOST_IP=127.0.0.1", "GLOO_SOCKET_IFNAME=lo", "NCCL_SOCKET_IFNAME==lo"} <= set(given)


async def test_a_named_interface_gives_vllm_its_address(tmp_path: Path) -> None:
    async with group(tmp_path, further={contract.INTERFACE_ENV: "lo"}) as found:
        await found.ready()
        assert "VLLM_HOST_IP=127.0.0.1" in environment_of(found.worker.engine()).split("\0")
