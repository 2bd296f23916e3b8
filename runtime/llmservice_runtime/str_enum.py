"""StrEnum for Python 3.10, which some vLLM images have."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):  # noqa: UP036
    from enum import StrEnum as StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):  # noqa: UP042
        __str__ = str.__str__
