"""A kubeconfig file with one cluster, one user and the context `one`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def kubeconfig(folder: Path, user: Mapping[str, Any] | None = None, /, *, namespace: str = "", **cluster: Any) -> Path:
    """Write `folder`/config. `cluster` needs a `server`; keys that are no names: `**{"proxy-url": ...}`."""
    context = {"cluster": "c", "user": "u"} | ({"namespace": namespace} if namespace else {})
    config = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": context}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": dict(user or {})}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(config))
    return path
