"""A server keeps to the list of adapters that is mounted, without a restart and across one, whatever is in it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from llmservice_runtime.adapter_list import Adapter, digest, to_json
from llmservice_runtime.bounded_json import MAX_BYTES
from llmservice_runtime.contract import MAX_ADAPTERS, AdapterState, Failure, FailureReason, Phase, State
from llmservice_runtime.supervisor.adapters import AdapterFailed, Adapters, LoraEndpoints
from llmservice_runtime.supervisor.client import http_request

from tests.support.hub import Hub, Repo, serving
from tests.support.patience import PATIENCE
from tests.support.stand_in.behaviour import Behaviour
from tests.unit.runtime.adapter_folder import write_adapter
from tests.unit.runtime.runtime_harness import Server, supervised

TOKEN = "hf_tokenOfTheTeam"


class Mounted:
    """A ConfigMap volume, which the kubelet exchanges as a whole by moving one link."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "mounted"
        self.folder.mkdir()
        self.file = self.folder / "adapters.json"
        self.file.symlink_to(Path("..data") / "adapters.json")
        self._versions = 0

    def write(self, text: str) -> str:
        """The list's digest."""
        self._versions += 1
        version = self.folder / f"..{self._versions}"
        version.mkdir()
        (version / "adapters.json").write_text(text)
        fresh = self.folder / "..data_tmp"
        fresh.symlink_to(version.name)
        fresh.replace(self.folder / "..data")
        return digest(text)

    def lists(self, **paths: Path) -> str:
        """Adapters by name; the digest."""
        return self.write(to_json([Adapter(name, f"pvc://claim/{path}", str(path)) for name, path in paths.items()]))


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    return Mounted(tmp_path)


def adapter(tmp_path: Path, name: str, rank: int = 8) -> Path:
    return write_adapter(tmp_path / "source" / name, rank=rank)


async def served(server: Server, key: str = "") -> dict[str, str]:
    """What vLLM itself says."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = await http_request(server.port, "/v1/models", headers=headers, timeout=PATIENCE)
    return {card["id"]: card["root"] for card in json.loads(answer.body)["data"] if card["parent"]}


async def settled(server: Server, wanted: str) -> State:
    """Once every adapter of this list has been looked at."""
    return await server.until(
        lambda state: state.adapters_hash == wanted and all(a.loaded or a.message for a in state.adapters)
    )


async def test_adapters_are_there_before_anybody_is_told_of_the_server(tmp_path: Path, mounted: Mounted) -> None:
    one, two = adapter(tmp_path, "one"), adapter(tmp_path, "two")
    wanted = mounted.lists(one=one, two=two)
    # Twice: what a restarted container finds is an engine without any.
    for _ in range(2):
        async with supervised(tmp_path, adapters_file=str(mounted.file)) as server:
            state = await server.until(lambda state: state.started)
            assert state.adapters == (AdapterState("one", True), AdapterState("two", True))
            assert (state.adapters_hash, state.model_names) == (wanted, ("m", "one", "two"))
            assert await served(server) == {"one": str(one), "two": str(two)}


async def test_adapters_come_and_go_without_a_restart(tmp_path: Path, mounted: Mounted) -> None:
    one, two = adapter(tmp_path, "one"), adapter(tmp_path, "two")
    mounted.lists(one=one)
    async with supervised(tmp_path, adapters_file=str(mounted.file)) as server:
        await server.ready()
        await settled(server, mounted.lists(one=one, two=two))
        assert await served(server) == {"one": str(one), "two": str(two)}
        state = await settled(server, mounted.lists(two=two))
        assert state.model_names == ("m", "two")
        assert await served(server) == {"two": str(two)}
        await settled(server, mounted.lists(two=one))
        assert await served(server) == {"two": str(one)}
        state = await settled(server, mounted.lists())
        assert state.adapters == ()
        assert await served(server) == {}
        assert server.process.returncode is None
        assert sum("Loading: starting vLLM" in line for line in server.log) == 1


async def test_a_broken_adapter_stops_nothing_and_is_tried_again(tmp_path: Path, mounted: Mounted) -> None:
    good, great = adapter(tmp_path, "good", rank=32), adapter(tmp_path, "great", rank=64)
    wanted = mounted.lists(good=good, great=great, absent=tmp_path / "absent", odd=adapter(tmp_path, "odd"))
    behaviour, flags = Behaviour(refused_adapter="odd"), ("--max-lora-rank", "32")
    async with supervised(tmp_path, behaviour, flags=flags, adapters_file=str(mounted.file)) as server:
        state = await server.ready()
        assert state.adapters_hash == wanted
        messages = {item.name: item.message for item in state.adapters if not item.loaded}
        assert set(messages) == {"great", "absent", "odd"}
        assert "Raise spec.lora.maxLoraRank" in messages["great"]
        assert "Check its uri in spec.adapters" in messages["absent"]
        assert "expected target modules" in messages["odd"]
        assert state.model_names == ("m", "good")
        # Nothing but the files changes: whoever mends them need not touch the list.
        write_adapter(tmp_path / "absent")
        await server.until(lambda state: "absent" in state.model_names)


async def test_a_server_with_a_key_is_asked_with_it(tmp_path: Path, mounted: Mounted) -> None:
    wanted = mounted.lists(one=adapter(tmp_path, "one"))
    behaviour, variables = Behaviour(), {"VLLM_API_KEY": "secret"}
    async with supervised(tmp_path, behaviour, adapters_file=str(mounted.file), variables=variables) as server:
        assert (await settled(server, wanted)).adapters[0].loaded
        assert list(await served(server, "secret")) == ["one"]
        assert not any("secret" in line for line in server.log)


async def test_an_adapter_that_is_not_mounted_is_fetched(tmp_path: Path, mounted: Mounted) -> None:
    one = Repo.of_folder(adapter(tmp_path, "one"))
    one.gated = True
    hub = Hub({"team/one": one, "team/other": Repo({"config.json": b"{}"})}, tokens={TOKEN: {"team/one"}})
    wanted = mounted.write(
        to_json([Adapter(name, f"hf://team/{repo}") for name, repo in (("a", "one"), ("b", "two"), ("c", "other"))])
    )
    places = (f"--cache={tmp_path / 'cache'}", f"--links={tmp_path / 'links'}")
    fetch = (sys.executable, "-m", "llmservice_fetch", "fetch", *places)
    with serving(hub):
        variables = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}
        arguments = {"adapters_file": str(mounted.file), "fetch": fetch, "variables": variables}
        async with supervised(tmp_path, **arguments) as server:  # type: ignore[arg-type]
            state = await settled(server, wanted)
            messages = {item.name: item.message for item in state.adapters if not item.loaded}
            assert set(messages) == {"b", "c"}, messages
            assert "team/two" in messages["b"]
            assert "adapter_config.json" in messages["c"]
            (path,) = (await served(server)).values()
            # Not a link's: vLLM takes what it cached for one path for the same adapter's.
            assert one.commit in path
            assert not any(TOKEN in line for line in server.log)


async def test_without_a_list_it_serves_the_base_model(tmp_path: Path, mounted: Mounted) -> None:
    async with supervised(tmp_path, adapters_file=str(mounted.file)) as server:
        state = await server.ready()
        assert (state.adapters_hash, state.adapters) == ("", ())
        # As when the ConfigMap is made after the pod.
        assert (await settled(server, mounted.lists(one=adapter(tmp_path, "one")))).adapters[0].loaded


@pytest.mark.parametrize("letter", ["x", "\N{BLACK SQUARE}", '"', "\x1b", "\ud800"], ids=ascii)
async def test_however_much_is_wrong_the_state_is_read(tmp_path: Path, letter: str) -> None:
    async def fails(adapter: Adapter) -> Path:
        raise AdapterFailed(letter * 1000)

    class Silent(LoraEndpoints):
        async def served(self) -> dict[str, str]:
            return {}

    names = [f"{number:02}" + "n" * 61 for number in range(MAX_ADAPTERS)]
    file = tmp_path / "adapters.json"
    file.write_text(to_json([Adapter(name, "hf://team/" + "u" * 500) for name in names]))
    adapters = Adapters(
        file,
        Silent(1, {}),
        fails,
        max_rank=16,
        base=dict,
        clock=time.monotonic,
        retry_seconds=5,
        log=lambda text: None,
    )
    await adapters.reconcile()
    words = "\N{BLACK SQUARE}" * 1024
    failure = Failure(FailureReason.ENGINE_DIED, words, words, (words,) * 3)
    whole = State(Phase.FAILED, progress=words, model_names=(words[:255],) * 8, failure=failure)
    text = adapters.with_adapters(whole).to_json()
    assert len(text.encode()) < MAX_BYTES
    read = State.from_json(text)
    assert read is not None
    assert [adapter.name for adapter in read.adapters] == names
    for adapter in read.adapters:
        assert 50 <= len(adapter.message) <= 512
