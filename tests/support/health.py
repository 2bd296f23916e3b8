"""What deployment tools make of objects: their own code, run on JSON."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from localcluster.builds import Store, build
from localcluster.paths import REPOSITORY, cache_root
from localcluster.programs import Group
from localcluster.progress import Progress
from tests.support.patience import PATIENCE

JSON = Mapping[str, Any]

SCRIPT = REPOSITORY / "charts" / "llmservice-operator" / "files" / "argocd-health.lua"


class Health(NamedTuple):
    """In the tool's own word, and its message."""

    status: str
    message: str


class Judged(NamedTuple):
    """One object."""

    kstatus: Health
    argo: Health


def judged(objects: Iterable[JSON]) -> list[Judged]:
    """kstatus, and our script in the Lua machine of Argo CD. The first call on a machine builds it (half a minute)."""
    return [
        Judged(Health(**answer["kstatus"]), Health(**answer["argo"]))
        for answer in _run(Group.HEALTH, "health", objects)
    ]


def argocd(objects: Iterable[JSON]) -> list[Health]:
    """Our script in Argo CD's own engine. The first call on a machine builds it (three minutes)."""
    return [
        Health(answer["status"], answer.get("message", "")) for answer in _run(Group.ARGOCD, "argocd-health", objects)
    ]


def _run(group: Group, name: str, objects: Iterable[JSON]) -> list[dict[str, Any]]:
    program = build(Store(cache_root(os.environ, Path.home())), group, os.environ, Progress()) / name
    text = "\n".join(json.dumps(obj) for obj in objects)
    done = subprocess.run([str(program), str(SCRIPT)], input=text, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
