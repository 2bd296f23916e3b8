"""Two real supervisors of one group on this machine, with stand-ins for vLLM."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from llmservice_runtime import contract
from llmservice_runtime.contract import Phase

from tests.support.ports import free_port
from tests.support.stand_in.behaviour import Behaviour
from tests.unit.runtime.runtime_harness import NEVER, WELL, Server, supervised


@dataclass
class Group:
    leader: Server
    worker: Server
    another_worker: Callable[[], AbstractAsyncContextManager[Server]]

    async def ready(self) -> None:
        await self.leader.ready()
        await self.worker.ready()


@asynccontextmanager
async def group(folder: Path, behaviour: Behaviour = WELL) -> AsyncIterator[Group]:
    group_port = free_port()

    def started(rank: int) -> AbstractAsyncContextManager[Server]:
        variables = {
            contract.GROUP_RANK_ENV: str(rank),
            contract.GROUP_LEADER_ENV: "127.0.0.1",
            contract.GROUP_TOKEN_ENV: "t",
            contract.POD_NAME_ENV: f"pod-{rank}",
        }
        own = Path(tempfile.mkdtemp(dir=folder))
        return supervised(
            own, behaviour, variables=variables, pod_addresses=loopback,
            nodes=2, group_port=group_port, revision_key="r",
        )  # fmt: skip

    async with AsyncExitStack() as stack:
        leader, worker = [await stack.enter_async_context(started(rank)) for rank in range(2)]
        yield Group(leader, worker, lambda: started(1))


def loopback() -> tuple[str, ...]:
    return ("127.0.0.1",)


async def test_they_serve_together(tmp_path: Path) -> None:
    async with group(tmp_path) as found:
        await found.ready()
        assert (await found.leader.complete()).status == 200
        for path in ("/startupz", "/readyz"):
            assert [await each.probe(path) for each in (found.leader, found.worker)] == [200, 200]


async def test_a_worker_whose_vllm_is_killed_while_idle_takes_the_group_down_and_all_come_back(tmp_path: Path) -> None:
    async with group(tmp_path) as found:
        await found.ready()
        os.kill(found.worker.engine(), signal.SIGKILL)
        await found.leader.until(lambda state: not state.ready)
        await found.ready()
        assert (await found.leader.complete()).status == 200
        state = await found.leader.state()
        assert state is not None
        assert state.group is not None
        assert state.group.cause is not None
        assert (state.group.incarnation, state.group.restarts, state.group.cause.pod) == (2, 1, "pod-1")
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


async def test_a_worker_that_dies_under_a_stream_costs_that_stream_and_nothing_after_it(tmp_path: Path) -> None:
    async with group(tmp_path) as found:
        await found.ready()
        stream = asyncio.ensure_future(found.leader.complete(stream=True, max_tokens=1000))
        await asyncio.sleep(0.2)
        os.kill(found.worker.engine(), signal.SIGKILL)
        with contextlib.suppress(OSError):
            assert "[DONE]" not in (await stream).body or '"error"' in (await stream).body
        await found.leader.until(lambda state: not state.ready)
        await found.ready()
        assert (await found.leader.complete()).status == 200


async def test_a_leader_whose_vllm_dies_comes_back_with_its_worker(tmp_path: Path) -> None:
    async with group(tmp_path) as found:
        await found.ready()
        worker = found.worker.engine()
        os.kill(found.leader.engine(), signal.SIGKILL)
        await found.leader.until(lambda state: not state.ready)
        await found.ready()
        assert found.worker.engine() != worker
        assert (await found.leader.complete()).status == 200


async def test_a_supervisor_that_is_killed_and_started_again_joins_the_next_incarnation(tmp_path: Path) -> None:
    async with group(tmp_path) as found, AsyncExitStack() as stack:
        await found.ready()
        found.worker.signal(signal.SIGKILL)
        await found.leader.until(lambda state: not state.ready)
        again = await stack.enter_async_context(found.another_worker())
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
