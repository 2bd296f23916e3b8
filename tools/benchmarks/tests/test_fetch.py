"""The fetch benchmark measures whole processes, counts what a kill costs, and its page says what its kept run says."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.fetch import page
from benchmarks.fetch.kept import Killed, Results, Speed, read
from benchmarks.fetch.measured import Command, Run, ToolFailed, kill_when, measure
from benchmarks.fetch.places import make_files, same
from benchmarks.fetch.proxy import proxied
from benchmarks.pages import stale

ROOT = Path(__file__).parents[3]
MIB = 1 << 20
GB = 1_000_000_000


def test_the_page_is_fresh() -> None:
    assert stale(ROOT, page.generated(ROOT)) == [], "run `python -m benchmarks.fetch.page`"


def speed(tool: str, *seconds: float, place: str = "hub", files: int = 8) -> Speed:
    """Nobody measured this."""
    return Speed(place, tool, files, GB, tuple(Run(each, 2.0, 50.0 + each) for each in seconds))


def killed(tool: str, again: int, *, whole: bool = True) -> Killed:
    """Nor this."""
    return Killed("hub", tool, 8, GB, GB // 2, GB // 2 + again, whole)


SLOW, FILES = "250 (250 to 250)", "| 8 × 119 MiB |"
LINES = {
    # median, range, beside the best of the others
    f"{FILES} `ours` | 250 (200 to 500) | 1.25 | 2 | 55 |": Results(
        speeds=(speed("ours", 2.0, 4.0, 5.0), speed("hf download", 5.0), speed("before", 1.0))
    ),
    # slower than the best
    f"{FILES} `ours` | {SLOW} | **0.50** missed | 2 | 54 |": Results(
        speeds=(speed("ours", 4.0), speed("s5cmd cp", 2.0), speed("aws s3 cp", 5.0))
    ),
    f"{FILES} `ours` | {SLOW} | - | 2 | 54 |": Results(speeds=(speed("ours", 4.0),)),
    # the server's own speed is no tool's
    f"{FILES} `read and dropped` | {SLOW} |  | 2 | 54 |": Results(
        speeds=(speed(page.PLAIN, 4.0), speed("hf download", 4.0))
    ),
    "| hub | 8 | `ours` | 5.0% | yes |": Results(kills=(killed("ours", GB // 20),)),
    "| hub | 8 | `ours` | **50.0%** missed | **no** |": Results(kills=(killed("ours", GB // 2, whole=False),)),
    "| hub | 8 | `hf download` | 50.0% | yes |": Results(kills=(killed("hf download", GB // 2),)),
    "| `ours` | size, published hash |": Results(verifies={"ours": "size, published hash"}),
}


@pytest.mark.parametrize("line", LINES)
def test_rows(line: str) -> None:
    assert line in page.page(LINES[line]).splitlines()


def test_without_a_run_the_page_says_so() -> None:
    assert page.NONE in page.page(None)
    assert page.NONE not in page.page(Results())


def test_what_is_kept_is_read_back(tmp_path: Path) -> None:
    results = Results(machine="9 cores", versions={"x": "1"}, speeds=(speed("ours", 1.0),), kills=(killed("ours", 1),))
    path = tmp_path / "fetch.json"
    assert read(path) is None
    path.write_text(results.to_json())
    assert read(path) == results


def python(script: str, folder: Path) -> Command:
    """A small tool."""
    return Command((sys.executable, "-S", "-c", script), dict(os.environ), folder)


def test_memory_and_cpu_of_children_count(tmp_path: Path) -> None:
    child = f"x = b'x' * {64 * MIB}; import time; time.sleep(0.2)"
    found = measure(
        python(f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {child!r}])", tmp_path)
    )
    assert found.seconds > 0.2
    assert found.cpu_seconds > 0
    assert found.peak_mib > 64


def test_a_tool_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="no such bucket"):
        measure(python("import sys; sys.exit('no such bucket')", tmp_path))


def test_a_kill_ends_it_where_the_condition_holds(tmp_path: Path) -> None:
    marker = tmp_path / "half"
    script = f"import time; open({str(marker)!r}, 'w').close(); time.sleep(60)"
    assert kill_when(python(script, tmp_path), marker.exists)
    assert not kill_when(python("", tmp_path), lambda: False)


def test_the_proxy_counts_what_a_server_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(bytes(3 * MIB))

        thread = threading.Thread(target=answer)
        thread.start()
        with proxied(server.getsockname()[1], 1e9) as proxy:
            with socket.create_connection(("127.0.0.1", proxy.port)) as client:
                client.sendall(b"all of it")
                got = 0
                while chunk := client.recv(MIB):
                    got += len(chunk)
            assert (got, proxy.sent) == (3 * MIB, 3 * MIB)
        thread.join()


def test_files_are_compared_by_what_is_in_them(tmp_path: Path) -> None:
    files, fetched = tmp_path / "files", tmp_path / "fetched" / "deep"
    size = make_files(files, 2, 100_000)
    assert 100_000 < size < 102_000
    fetched.mkdir(parents=True)
    weights = sorted(files.glob("*.safetensors"))
    for path in weights:
        (fetched / path.name).write_bytes(path.read_bytes())
    assert same(files, tmp_path / "fetched")
    (fetched / weights[0].name).write_bytes(b"other")
    assert not same(files, tmp_path / "fetched")
