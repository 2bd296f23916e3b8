"""tools/scripts/uv, by which every make target installs its Python packages."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from localcluster.paths import REPOSITORY


def test_no_byte_code_is_kept_before_there_is_a_virtual_environment(tmp_path: Path) -> None:
    """make keeps byte code below .venv, and `uv sync` refuses a .venv that holds anything but an environment."""
    stand_in = tmp_path / "uv"
    stand_in.write_text('#!/bin/sh\necho "kept in: $PYTHONPYCACHEPREFIX"\n')
    stand_in.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPYCACHEPREFIX": str(tmp_path / ".venv" / "bytecode"),
    }
    done = subprocess.run(
        [REPOSITORY / "tools" / "scripts" / "uv", "sync"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "kept in: \n"
