"""What a namespace may be named. Imports nothing: each command that asks a cluster checks it."""

from __future__ import annotations

import re
from typing import Any

LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
"""RFC 1123."""
_FORM = re.compile(LABEL)
_LONGEST = 63


def is_namespace(name: Any) -> bool:
    """Whether a namespace can have this name. Another one would be another path of the API server."""
    return isinstance(name, str) and len(name) <= _LONGEST and _FORM.fullmatch(name) is not None
