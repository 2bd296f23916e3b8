"""The tests that import other platforms' modules of vLLM also run where the CPU has no AVX-512."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.full
@pytest.mark.vllm
def test_vllms_lists_are_read_where_the_cpu_has_no_avx512() -> None:
    """In a process of its own: the kernels are chosen once, when vLLM is imported, and what goes wrong is an abort."""
    plugins = ("-p", "tests.support.no_avx512", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "tests/unit/api/test_matrix_vllm_lists.py"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
