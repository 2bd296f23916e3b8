"""The workflows of .github: actions pinned by commit, and accepted by actionlint."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.builds import Store, build
from localcluster.paths import REPOSITORY, cache_root
from localcluster.programs import Group
from localcluster.progress import Progress

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
STORE = Store(cache_root(os.environ, Path.home()))


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def test_there_are_workflows() -> None:
    assert [workflow.name for workflow in WORKFLOWS] == ["ci.yml", "release.yml", "vllm.yml"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(workflow: Path) -> None:
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert used
    assert [name for name in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name)] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_no_script_is_made_of_what_others_may_write(workflow: Path) -> None:
    """An expression in a script would be run as shell; values come by the environment."""
    assert [step["run"] for step in steps(workflow) if "${{" in step.get("run", "")] == []


def test_ci_runs_what_is_run_by_hand() -> None:
    (workflow,) = (path for path in WORKFLOWS if path.name == "ci.yml")
    assert [step["run"] for step in steps(workflow) if "run" in step] == ["sudo --preserve-env .ci/run"]


# Seconds to run, and a minute to build once: part of `make test` where it is built already.
@pytest.mark.parametrize("_", [pytest.param("", marks=[] if STORE.has(Group.WORKFLOWS) else [pytest.mark.full])])
def test_actionlint_accepts_them(_: str) -> None:
    program = build(STORE, Group.WORKFLOWS, os.environ, Progress()) / "actionlint"
    command = [str(program), "-no-color", "-shellcheck=", "-pyflakes=", *map(str, WORKFLOWS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
