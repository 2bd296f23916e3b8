"""Which cluster, namespace and credentials several kubeconfig files mean: as kubectl itself merges and chooses."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml
from kubeloop.errors import ConfigError
from kubeloop.kubeconfig import from_kubeconfig

Json = dict[str, Any]


def config(name: str, **changes: Any) -> Json:
    """One context, cluster and user of this name."""
    context = {"cluster": name, "user": name, "namespace": f"ns-{name}"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": context}],
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}:6443"}}],
        "users": [{"name": name, "user": {"token": f"token-of-{name}"}}],
    } | changes


# The same names as prod, other values.
OTHER = config("dev", clusters=[{"name": "prod", "cluster": {"server": "https://other:6443"}}])
OTHER |= {"users": [{"name": "prod", "user": {"token": "token-of-other"}}], "current-context": "prod"}
OTHER |= {"contexts": [{"name": "prod", "context": {"cluster": "prod", "user": "prod", "namespace": "ns-other"}}]}
FILES: dict[str, str | None] = {
    "prod": yaml.safe_dump(config("prod")),
    "dev": yaml.safe_dump(config("dev")),
    "same-names": yaml.safe_dump(OTHER),
    "blank": yaml.safe_dump(config("dev", **{"current-context": ""})),
    "null-context": yaml.safe_dump(config("dev", **{"current-context": None})),
    "only-context": "apiVersion: v1\nkind: Config\ncurrent-context: dev\n",
    "no-credentials": yaml.safe_dump(config("open", users=[{"name": "open", "user": None}])),
    "no-user": yaml.safe_dump(config("anyone", contexts=[{"name": "anyone", "context": {"cluster": "anyone"}}])),
    "null-lists": yaml.safe_dump(config("dev", clusters=None, users=None, contexts=None)),
    "no-such-context": yaml.safe_dump(config("dev", **{"current-context": "gone"})),
    "json": json.dumps(config("prod"), indent="\t"),
    "empty": "",
    "comment": "# nothing yet\n",
    "missing": None,
}
PAIRS = [*((name,) for name in FILES), *itertools.permutations(FILES, 2), ("missing", "", "prod"), ("prod", "prod")]


def ours(paths: str) -> tuple[str, str, str] | None:
    """Server, namespace and token; None where there is nothing to use."""

    async def read() -> tuple[str, str, str]:
        found = await from_kubeconfig(paths, context=None, clock=lambda: 0.0)
        return found.server, found.namespace, await found.token() or ""

    try:
        return asyncio.run(read())
    except ConfigError:
        return None


def kubectls(program: str, paths: str) -> tuple[str, str, str] | None:
    command = (program, "config", "view", "--minify", "--raw", "--output=json")
    environment = os.environ | {"KUBECONFIG": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    found = json.loads(done.stdout)
    clusters, users, contexts = (found.get(kind) or [] for kind in ("clusters", "users", "contexts"))
    server = clusters[0]["cluster"].get("server") if clusters else None
    if not server:
        return None
    token = ((users[0]["user"] or {}) if users else {}).get("token", "")
    return server, contexts[0]["context"].get("namespace", "default"), token


def test_pairs_of_files_mean_what_they_mean_to_kubectl(tmp_path: Path, kubectl_program: str) -> None:
    for name, text in FILES.items():
        if text is not None:
            (tmp_path / name).write_text(text)
    different = {}
    for names in PAIRS:
        paths = ":".join(str(tmp_path / name) if name else "" for name in names)
        theirs, mine = kubectls(kubectl_program, paths), ours(paths)
        if theirs != mine:
            different[":".join(names)] = {"kubectl": theirs, "llmservice": mine}
    assert different == {}
