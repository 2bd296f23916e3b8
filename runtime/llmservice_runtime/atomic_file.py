"""Writes files that readers see whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any


def write_json(path: Path, document: Any) -> None:
    """Write one line of JSON; its folder is made. OSError where that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Process ids of two pods may be the same.
    staging = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        staging.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
        os.replace(staging, path)  # noqa: PTH105 - what it is known as
    except OSError:
        staging.unlink(missing_ok=True)
        raise
