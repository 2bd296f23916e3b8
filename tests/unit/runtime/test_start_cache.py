"""What makes the next start faster: whose files they are, what becomes of them, and what a server does with them."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import threading
from collections.abc import Callable
from operator import eq
from pathlib import Path

import pytest
from llmservice_runtime.contract import Failure, Measured
from llmservice_runtime.failures.reasons import FailureReason as R
from llmservice_runtime.options import ServeOptions
from llmservice_runtime.supervisor import start_cache
from llmservice_runtime.supervisor import start_cache as cache_folder
from llmservice_runtime.supervisor.start_cache import KEPT, LEAST_BYTES, StartCache
from llmservice_runtime.supervisor.start_cache import opened as within

from tests.support.stand_in.behaviour import Behaviour
from tests.unit.runtime.runtime_harness import Server, supervised

POD = "/llmservice/cache"


def opened(root: Path, revision: str = "a", log: list[str] | None = None, nodes: int = 1) -> StartCache:
    options = ServeOptions(start_cache=str(root), revision_key=revision, nodes=nodes)
    return StartCache.open(options, log.append if log is not None else lambda text: None)


def folder_of(root: Path, revision: str = "a", pod: str = "") -> Path:
    return root / f"{start_cache.identity(revision)}-{pod or socket.gethostname()}"


def machine(root: Path, cpu: str = "model name: X\nflags: avx512\n", gpu: str = "") -> tuple[Path, Path]:
    """A /proc and a /sys."""
    proc = root / "proc"
    information = proc / "driver" / "nvidia" / "gpus" / "0000:01:00.0"
    information.mkdir(parents=True)
    (proc / "cpuinfo").write_text(cpu)
    if gpu:
        (information / "information").write_text(gpu)
    return proc, root / "sys"


H100 = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   12\nGPU UUID: \t GPU-{}\nVideo BIOS: \t 96.00\n"
KEYS: list[tuple[str, dict[str, str], str, bool]] = [
    ("the same again", {}, "a", True),
    ("another revision", {}, "b", False),
    ("another processor", {"cpu": "model name: Y\nflags: avx512\n"}, "a", False),
    ("a processor without a feature", {"cpu": "model name: X\nflags: avx2\n"}, "a", False),
    ("another core's speed", {"cpu": "model name: X\nflags: avx512\ncpu MHz: 2100\n"}, "a", True),
    ("a GPU", {"gpu": H100}, "a", False),
]


@pytest.mark.parametrize(("change", "revision", "is_same"), [row[1:] for row in KEYS], ids=[row[0] for row in KEYS])
def test_files_belong_to_a_revision_and_a_device(
    tmp_path: Path, change: dict[str, str], revision: str, is_same: bool
) -> None:
    usual = start_cache.identity("a", *machine(tmp_path / "usual"))
    assert (start_cache.identity(revision, *machine(tmp_path / "other", **change)) == usual) is is_same


def test_two_gpus_of_one_product_are_the_same_device(tmp_path: Path) -> None:
    one, other = (start_cache.identity("a", *machine(tmp_path / name, gpu=H100.format(name))) for name in ("1", "2"))
    assert one == other


def test_an_image_is_known_by_the_contents_of_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tag may get other contents."""
    before, found = (start_cache.identity("a"), start_cache.build()), importlib.metadata.distribution

    class Rebuilt:
        version = found("pytest").version

        def read_text(self, name: str) -> str:
            return f"{name} of another build"

    monkeypatch.setattr(
        importlib.metadata, "distribution", lambda name: Rebuilt() if name == "torch" else found("pytest")
    )
    after = start_cache.identity("a"), start_cache.build()
    assert [*map(eq, before, after)] == [False, False]


PLACES = [
    pytest.param({}, {"VLLM_CACHE_ROOT": "vllm", "CUDA_CACHE_PATH": "cuda"}, id="none named"),
    pytest.param({"VLLM_CACHE_ROOT": f"{POD}/vllm"}, {"VLLM_CACHE_ROOT": "vllm"}, id="the pod's own"),
    pytest.param({"TRITON_CACHE_DIR": "/data/t"}, {"TRITON_CACHE_DIR": None}, id="the user's"),
]


@pytest.mark.parametrize(("given", "wanted"), PLACES)
def test_compiled_code_is_put_into_the_folder(
    tmp_path: Path, given: dict[str, str], wanted: dict[str, str | None]
) -> None:
    variables = opened(tmp_path).environment(given)
    for name, place in wanted.items():
        assert variables[name] == (given[name] if place is None else str(folder_of(tmp_path) / place))


@pytest.mark.parametrize("has_bytecode", [True, False])
def test_bytecode_is_kept_where_the_image_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_bytecode: bool
) -> None:
    monkeypatch.setattr(cache_folder, "_has_bytecode", lambda: has_bytecode)
    cache = opened(tmp_path)
    assert ("PYTHONPYCACHEPREFIX" in cache.environment({})) is not has_bytecode
    assert cache.environment({"PYTHONPYCACHEPREFIX": "/mine"})["PYTHONPYCACHEPREFIX"] == "/mine"


def served(root: Path, revision: str = "a", *, drained: bool = False) -> StartCache:
    cache = opened(root, revision)
    cache.mark_served()
    if drained:
        cache.mark_drained()
    return cache


def as_pod(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)


def as_node(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(cache_folder, "_node", lambda: name)


def names(root: Path) -> set[str]:
    return {path.name.partition("-")[2] for path in root.iterdir()}


def test_new_then_reused_by_any_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_pod(monkeypatch, "one")
    assert served(tmp_path).state == "New"
    for pod in ("one", "two"):
        as_pod(monkeypatch, pod)
        assert served(tmp_path).state == "Reused"
    assert names(tmp_path) == {"one"}


def test_what_never_served_is_used_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that start at the same time write to folders of their own; one that was killed is not read."""
    as_pod(monkeypatch, "one")
    opened(tmp_path)
    half = folder_of(tmp_path, pod="one") / "half-written"
    half.touch()
    as_pod(monkeypatch, "two")
    assert opened(tmp_path).state == "New"
    assert names(tmp_path) == {"one", "two"}
    as_pod(monkeypatch, "one")
    assert opened(tmp_path).state == "New"
    assert not half.exists(), "the container was restarted: it begins anew"


def test_the_first_request_is_left_out_after_a_good_end_on_this_node_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_node(monkeypatch, "a")
    served(tmp_path)
    assert not served(tmp_path).ended_well, "it may have been killed"
    served(tmp_path, drained=True)
    assert opened(tmp_path).ended_well
    assert not opened(tmp_path).ended_well, "a mark counts for one start"
    served(tmp_path, drained=True)
    as_node(monkeypatch, "b")
    assert not opened(tmp_path).ended_well


def test_a_start_that_fails_with_earlier_files_is_followed_by_one_without(tmp_path: Path) -> None:
    log: list[str] = []
    served(tmp_path)
    opened(tmp_path, log=log).mark_failed()
    assert "the next one is without them" in log[-1]
    assert folder_of(tmp_path).exists(), "another replica may have it open"
    assert opened(tmp_path).state == "New"


def test_a_start_that_is_killed_with_earlier_files_is_followed_by_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that is out of memory as a whole can say nothing."""
    as_pod(monkeypatch, "one")
    served(tmp_path)
    as_pod(monkeypatch, "two")
    assert opened(tmp_path).state == "Reused"
    assert opened(tmp_path).state == "New", "the same pod starts again, and never served"
    as_pod(monkeypatch, "three")
    assert opened(tmp_path).state == "New"


def test_files_have_no_part_in_the_end_of_a_group(tmp_path: Path) -> None:
    served(tmp_path)
    for _ in range(2):
        cache = opened(tmp_path)
        assert cache.state == "Reused"
        cache.mark_ended()


def test_old_folders_are_deleted_and_nothing_else_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_pod(monkeypatch, "p")
    (tmp_path / "lost+found").mkdir()
    for age, revision in enumerate("abcdef"):
        served(tmp_path, revision)
        os.utime(folder_of(tmp_path, revision, "p"), (1000 + age, 1000 + age))
    opened(tmp_path, "never served")
    os.utime(folder_of(tmp_path, "never served", "p"), (2000, 2000))
    opened(tmp_path, "recent")
    opened(tmp_path, "new")
    left = {path.name for path in tmp_path.iterdir()}
    kept = ("d", "e", "f", "recent", "new")
    assert left == {"lost+found", *(folder_of(tmp_path, revision, "p").name for revision in kept)}
    assert KEPT == 4, "this one, and three others that served"


def test_each_rank_of_a_group_keeps_as_many_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_pod(monkeypatch, "p")
    for age, rank in enumerate("abcdefghi"):
        opened(tmp_path, rank, nodes=2).mark_served()
        os.utime(folder_of(tmp_path, rank, "p"), (1000 + age, 1000 + age))
    opened(tmp_path, "new", nodes=2)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {folder_of(tmp_path, rank, "p").name for rank in (*"cdefghi", "new")}


def test_a_full_volume_is_read_and_gets_no_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served(tmp_path, "there")
    monkeypatch.setattr(cache_folder, "_free_bytes", lambda _: LEAST_BYTES - 1)
    assert opened(tmp_path, "there").state == "Reused"
    log: list[str] = []
    cache = opened(tmp_path, "new", log)
    assert cache.state == "Unused"
    assert "make spec.startCache.size larger" in log[-1]
    assert cache.environment({"A": "b"}) == {"A": "b"}
    assert cache.processes == ()
    reported = cache.reported(Measured())
    assert (reported.start_cache, reported.start_cache_message) == ("Unused", cache.why_unused)


def test_a_folder_of_the_pod_is_not_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is gone with the pod; with a claim the next start has it."""
    assert opened(tmp_path).reported(Measured()).start_cache == "New"
    monkeypatch.setattr(ServeOptions, "start_cache", str(tmp_path))
    assert opened(tmp_path).reported(Measured()) == Measured()


async def test_a_volume_that_hangs_keeps_no_server_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(cache_folder, "_free_bytes", lambda _: release.wait(20))
    cache = await within(ServeOptions(start_cache=str(tmp_path)), 0.05, lambda text: None)
    release.set()
    assert cache.state == "Unused"
    assert "does not answer within 0.05 s" in cache.why_unused


def test_marks_wait_for_a_volume_that_hangs_for_a_moment_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, release = opened(tmp_path), threading.Event()
    monkeypatch.setattr(cache_folder, "_MARK_SECONDS", 0.01)
    monkeypatch.setattr(Path, "touch", lambda *_, **__: release.wait(20))
    cache.mark_served()
    release.set()


def _file(root: Path) -> None:
    root.touch()


def _nothing_in_a_file(root: Path) -> None:
    root.parent.joinpath("file").touch()


@pytest.mark.parametrize(
    ("make", "place"), [(_file, "it"), (_nothing_in_a_file, "file/it")], ids=["a file", "below a file"]
)
def test_a_volume_that_cannot_be_written_is_not_used(tmp_path: Path, make: Callable[[Path], None], place: str) -> None:
    make(tmp_path / "it")
    cache = opened(tmp_path / place)
    assert cache.state == "Unused"
    assert "must be writable for the pod's group" in cache.why_unused
    cache.mark_served()
    cache.mark_failed()


def test_without_a_folder_nothing_is_said() -> None:
    cache = StartCache.open(ServeOptions(start_cache=""), lambda text: None)
    assert cache.reported(Measured()) == Measured()
    cache.mark_served()


def test_a_folder_that_is_taken_away_meanwhile_is_logged(tmp_path: Path) -> None:
    log: list[str] = []
    cache = opened(tmp_path, log=log)
    shutil.rmtree(folder_of(tmp_path))
    cache.mark_served()
    assert "cannot be written" in log[-1]


# A server with it


async def drained(server: Server) -> None:
    await server.ready()
    server.signal()
    assert await server.ended() == 0, "".join(server.log)


def completions(server: Server) -> int:
    return sum("POST /v1/completions" in line for line in server.log)


async def test_the_first_request_is_left_to_clients_after_a_good_end_only(tmp_path: Path) -> None:
    async with supervised(tmp_path, start_cache=str(tmp_path / "cache")) as server:
        await drained(server)
    assert completions(server) == 1
    async with supervised(tmp_path, start_cache=str(tmp_path / "cache")) as server:
        state = await server.ready()
        assert state.measured.start_cache == "Reused"
        assert completions(server) == 0
        assert (await server.complete()).status == 200
        # Now it is killed: the next one looks first.
        server.signal(9)
        await server.ended()
    async with supervised(tmp_path, start_cache=str(tmp_path / "cache")) as server:
        await server.ready()
        assert completions(server) == 1


async def test_a_start_that_fails_is_followed_by_one_without_the_files(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    async with supervised(tmp_path, start_cache=str(root)) as server:
        await drained(server)
    (kept,) = root.iterdir()
    async with supervised(tmp_path, Behaviour(exit_loading=1), start_cache=str(root)) as server:
        assert (await server.failed()).reason is not R.ENGINE_MISSING
    assert (kept / "failed").exists()


async def test_a_preflight_that_fails_deletes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    async with supervised(tmp_path, start_cache=str(root)) as server:
        await drained(server)
    refusing = ("sh", "-c", f"echo '{Failure(R.VERSION_MISMATCH, 'm', 'r').to_json()}'")
    async with supervised(tmp_path, preflight=refusing, start_cache=str(root)) as server:
        await server.failed()
    (kept,) = root.iterdir()
    assert {"served", "failed"} & {file.name for file in kept.iterdir()} == {"served"}


async def test_a_volume_that_cannot_be_used_keeps_no_server_from_starting(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    async with supervised(tmp_path, start_cache=str(tmp_path / "cache")) as server:
        state = await server.ready()
    assert state.measured.start_cache == "Unused"
    assert state.measured.start_cache_message is not None
