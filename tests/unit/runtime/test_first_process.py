"""As a container's first process, which gets no signal that it has no handler for."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE

CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")


def first_process(parent: int) -> int:
    (child,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(child)


def can_unshare() -> bool:
    return shutil.which("unshare") is not None and not subprocess.run((*CONTAINER, "true"), check=False).returncode


@pytest.mark.skipif(not can_unshare(), reason="namespaces of processes are not to be had")
def test_it_ends_when_it_is_told_to_before_it_has_anything_to_drain() -> None:
    """It looks at a model that a hub never sends."""
    with socket.create_server(("127.0.0.1", 0)) as hub:
        look = (sys.executable, "-m", "llmservice_fetch", "inspect", "--model=hf://team/tiny")
        environment = os.environ | {"HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}", "NO_PROXY": "*"}
        process = subprocess.Popen((*CONTAINER, *look), env=environment, stdout=subprocess.DEVNULL)
        try:
            hub.settimeout(PATIENCE)
            asked, _ = hub.accept()
            with asked:
                os.kill(first_process(process.pid), signal.SIGTERM)
                assert process.wait(PATIENCE) == 128 + signal.SIGTERM
        finally:
            process.kill()
            process.wait()
