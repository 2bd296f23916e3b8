"""Writes files atomically."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any


def write_json(path: Path, document: Any) -> None:
    """Write one line of JSON and create its folder. OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Process ids of two pods may be equal.
    staging = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        staging.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
        os.replace(staging, path)  # noqa: PTH105  # the usual name
    except OSError:
        staging.unlink(missing_ok=True)
        raise
