"""A fetch has its credentials, and nobody who reads /proc meanwhile: vLLM runs as the same user."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from llmservice_runtime import fetch_phase
from llmservice_runtime.adapter_list import Adapter, digest, to_json
from llmservice_runtime.contract import State
from llmservice_runtime.processes import Reaper

from tests.support.hub import Hub, Repo, serving
from tests.unit.adapter_folder import write_adapter
from tests.unit.runtime_harness import supervised

TOKEN = "hf_tokenOfTheTeam"
SECRET = {"HF_TOKEN": TOKEN, "AWS_SECRET_ACCESS_KEY": "keyOfTheTeam"}
# What others can read of a process is what stands here, until it hides it.
WATCHED = """
import sys
from pathlib import Path
with open({seen!r}, "ab") as seen:
    seen.write(Path("/proc/self/environ").read_bytes() + Path("/proc/self/cmdline").read_bytes())
from llmservice_runtime.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
HASTY = """
import select, socket, sys
silent = not select.select([0], [], [], 0.5)[0]
print('{"failure": {"reason": "ModelCorrupt", "message": "%s", "remedy": "r"}}' % silent)
sys.exit(1)
"""


async def test_what_a_fetch_is_executed_with_holds_no_credentials(tmp_path: Path) -> None:
    gated = Repo.of_folder(write_adapter(tmp_path / "one"))
    gated.gated = True
    hub = Hub({"team/one": gated}, tokens={TOKEN: {"team/one"}})
    seen = tmp_path / "seen"
    listed = to_json([Adapter("a", "hf://team/one")])
    adapters = tmp_path / "adapters.json"
    adapters.write_text(listed)
    script = WATCHED.format(seen=str(seen))
    fetch = (sys.executable, "-c", script, "fetch", f"--cache={tmp_path / 'cache'}")

    def is_there(state: State) -> bool:
        return state.adapters_hash == digest(listed) and state.adapters[0].loaded

    with serving(hub):
        variables = {"HF_ENDPOINT": hub.url, **SECRET}
        async with supervised(tmp_path, adapters_file=str(adapters), fetch=fetch, variables=variables) as server:
            await server.until(is_there)
    assert b"HF_ENDPOINT" in seen.read_bytes(), "what is no credential is there as ever"
    for name, value in SECRET.items():
        assert name.encode() not in seen.read_bytes()
        assert value.encode() not in seen.read_bytes()


async def test_nothing_is_sent_before_it_is_asked_for() -> None:
    reaper = Reaper(asyncio.get_running_loop())
    try:
        command = (sys.executable, "-c", HASTY)
        failure = await fetch_phase.run(reaper, command, {**os.environ, **SECRET}, lambda transfer: None)
    finally:
        reaper.close()
    assert failure is not None
    assert failure.message == "True"


@pytest.mark.parametrize("command", [("true",), (sys.executable, "-c", "import time; time.sleep(60)")])
async def test_a_fetch_that_never_asks_leaves_nothing_behind(command: tuple[str, ...]) -> None:
    reaper = Reaper(asyncio.get_running_loop())
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    try:
        work = asyncio.ensure_future(fetch_phase.run(reaper, command, dict(os.environ), lambda transfer: None))
        await asyncio.wait([work], timeout=0.5)
        work.cancel()
        await asyncio.wait([work])
        assert asyncio.all_tasks() == {asyncio.current_task()}
    finally:
        reaper.close()
    assert len(os.listdir("/proc/self/fd")) <= len(before)  # noqa: PTH208
