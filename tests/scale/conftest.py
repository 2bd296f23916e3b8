"""The running cluster."""

from tests.e2e.conftest import cluster, pytest_terminal_summary, record

__all__ = ["cluster", "pytest_terminal_summary", "record"]
