"""Processes of vLLM that import it before vLLM asks for them: real ones, of a module that starts them as vLLM does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from llmservice_runtime.supervisor.vllm_process import command

from tests.support.cluster import eventually
from tests.support.patience import PATIENCE
from tests.unit.runtime import spawning_engine
from tests.unit.runtime.runtime_harness import children

MODULE = spawning_engine.MODULE
ENGINE = {"OF_ENGINE": "as vLLM sets it"}


def begin(record: Path, **environment: str) -> subprocess.Popen[str]:
    """A launch that has not been given its arguments yet."""
    return subprocess.Popen(
        (*command(MODULE), str(record)),
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def arguments(**given: object) -> str:
    """What the launch reads."""
    return json.dumps([json.dumps({"patience": PATIENCE, **given})])


def finish(launch: subprocess.Popen[str], **given: object) -> tuple[dict[str, Any], str]:
    """What it prints with the processes that were there before it was given its arguments, and its log."""
    waiting = started_by(launch)
    output, log = launch.communicate(arguments(**given), timeout=PATIENCE)
    assert launch.returncode == 0, log
    return json.loads(output) | {"waiting": waiting}, log


def run(record: Path, **given: object) -> dict[str, Any]:
    return finish(begin(record), **given)[0]


def run_again(record: Path, **given: object) -> dict[str, Any]:
    """A start with a record, once the processes of the record are there."""
    launch = begin(record)
    waits(launch, 2)
    return finish(launch, **given)[0]


def prepared(said: dict[str, Any]) -> tuple[bool, bool]:
    """Whether engine and worker are processes that waited before vLLM asked for the engine."""
    waiting = said["waiting"]
    return said["engine"]["pid"] in waiting, said["worker"]["pid"] in waiting


def started_by(launch: subprocess.Popen[str]) -> list[int]:
    """Its processes, and theirs."""
    engines = children(launch.pid)
    return [*engines, *(worker for engine in engines for worker in children(engine))]


def runs(process: int) -> bool:
    """Whether it has not ended yet; SIGKILL takes a moment."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def waits(launch: subprocess.Popen[str], count: int) -> list[int]:
    """Its prepared processes, once all of them are there."""
    eventually("prepared processes", lambda: len(started_by(launch)) == count, 30)
    return started_by(launch)


def test_the_second_start_uses_processes_that_were_there_before(tmp_path: Path) -> None:
    first = run(tmp_path, set=ENGINE)
    assert prepared(first) == (False, False)
    second = run_again(tmp_path, set=ENGINE)
    assert prepared(second) == (True, True)
    for said in (first, second):
        assert said["engine"]["parent"] == said["pid"], "a real child: it is waited for as any other"
        assert said["worker"]["parent"] == said["engine"]["pid"]
        assert (said["engine"]["knows"], said["worker"]["knows"]) == (True, True), "that its parent lives"
        assert (said["engine"]["variable"], said["worker"]["variable"]) == (ENGINE["OF_ENGINE"],) * 2
        assert (said["engine"]["preload"], said["worker"]["preload"]) == ("", "1")
        assert said["engine"]["main"] in ("", MODULE)
        assert said["codes"] == [0, 0]


def test_a_prepared_process_fails_as_any_other(tmp_path: Path) -> None:
    run(tmp_path)
    said = run_again(tmp_path, fails=True)
    assert prepared(said) == (True, True)
    assert said["codes"] == [0, 3]


def test_another_environment_gets_new_processes_and_is_recorded(tmp_path: Path) -> None:
    run(tmp_path, set=ENGINE)
    other = {"OF_ENGINE": "another"}
    said = run_again(tmp_path, set=other)
    assert prepared(said) == (False, False)
    assert said["worker"]["variable"] == "another"
    assert prepared(run_again(tmp_path, set=other)) == (True, True)


def test_limits_that_are_raised_before_the_start_count(tmp_path: Path) -> None:
    run(tmp_path)
    said = run_again(tmp_path, files=500)
    assert prepared(said) == (True, True)
    assert (said["engine"]["files"], said["worker"]["files"]) == (500, 500)


def test_without_a_record_nothing_is_kept(tmp_path: Path) -> None:
    launch = subprocess.Popen(command(MODULE), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    output, _ = launch.communicate(arguments(), timeout=PATIENCE)
    assert json.loads(output)["codes"] == [0, 0]
    assert not list(tmp_path.iterdir())


def test_a_record_that_cannot_be_written_keeps_nothing_from_starting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said, log = finish(begin(tmp_path / "file"))
    assert said["codes"] == [0, 0]
    assert "cannot record how vLLM starts its processes" in log


def test_a_prepared_process_that_ended_is_replaced(tmp_path: Path) -> None:
    run(tmp_path)
    launch = begin(tmp_path)
    processes = waits(launch, 2)
    for process in processes:
        os.kill(process, signal.SIGKILL)
    eventually("both have ended", lambda: not any(map(runs, processes)), 20)
    said, _ = finish(launch)
    assert prepared(said) == (False, False)
    assert said["codes"] == [0, 0]


def test_prepared_processes_end_with_their_parent(tmp_path: Path) -> None:
    run(tmp_path)
    launch = begin(tmp_path)
    processes = waits(launch, 2)
    launch.kill()
    launch.communicate()
    eventually("the end", lambda: not any(Path(f"/proc/{pid}/fd/0").exists() for pid in processes), 30)


def test_a_launch_that_is_told_to_end_does_so_before_its_arguments_come(tmp_path: Path) -> None:
    launch = begin(tmp_path)
    time.sleep(0.2)  # anywhere in its imports
    launch.terminate()
    launch.communicate(timeout=PATIENCE)
    assert launch.returncode == -signal.SIGTERM


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[[]]", "not JSON"], ids=repr)
def test_arguments_that_are_none_start_nothing(tmp_path: Path, text: str) -> None:
    launch = begin(tmp_path)
    _, log = launch.communicate(text, timeout=PATIENCE)
    assert launch.returncode == 1
    assert "the supervisor's arguments" in log


def test_long_arguments_arrive(tmp_path: Path) -> None:
    said = run(tmp_path, padding="x" * 300_000)
    assert said["codes"] == [0, 0]


def test_credentials_are_not_recorded(tmp_path: Path) -> None:
    run(tmp_path, set={"HF_TOKEN": "secret", "AWS_SECRET_ACCESS_KEY": "secret", "PLAIN": "kept"})
    text = "".join(file.read_text() for file in tmp_path.iterdir())
    assert "kept" in text
    assert "secret" not in text
