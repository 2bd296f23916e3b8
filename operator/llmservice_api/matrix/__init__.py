"""Compatibility matrix: every combination that vLLM or the operator refuses.

The CRD's rules and the planner use it; docs/reference/compatibility.md is generated from it.
"""

from llmservice_api.matrix import backends, methods, techniques
from llmservice_api.matrix.dimensions import DIMENSIONS, Check, Dimension, Incompatibility

ROWS: tuple[Incompatibility, ...] = (*methods.rows(), *backends.rows(), *techniques.rows())
"""Every incompatible combination, in the order of the page."""

__all__ = ["DIMENSIONS", "ROWS", "Check", "Dimension", "Incompatibility"]
