"""What goes with what: one home for every list and every pair that vLLM, or the operator before it, refuses.

The rules of the CRD and the planner take their lists from here, and docs/reference/compatibility.md is made from it.
"""

from llmservice_operator.api.matrix import backends, methods, techniques
from llmservice_operator.api.matrix.dimensions import DIMENSIONS, Check, Dimension, Row

ROWS: tuple[Row, ...] = (*methods.rows(), *backends.rows(), *techniques.rows())
"""Every pair that is refused, in the order of the page."""

__all__ = ["DIMENSIONS", "ROWS", "Check", "Dimension", "Row"]
