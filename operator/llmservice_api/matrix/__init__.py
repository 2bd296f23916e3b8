"""Compatibility of values: every list and every pair that vLLM, or the operator before it, refuses.

The CRD's rules and the planner use these lists; docs/reference/compatibility.md is generated from them.
"""

from llmservice_api.matrix import backends, methods, techniques
from llmservice_api.matrix.dimensions import DIMENSIONS, Check, Dimension, Row

ROWS: tuple[Row, ...] = (*methods.rows(), *backends.rows(), *techniques.rows())
"""Every pair that is refused, in the order of the page."""

__all__ = ["DIMENSIONS", "ROWS", "Check", "Dimension", "Row"]
