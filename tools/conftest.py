"""Tests of the tools draw, skip and share processes as the unit tests do."""

from tests.unit.conftest import (
    _garbage_is_looked_for_in_what_this_file_makes,
    pytest_collection_modifyitems,
    pytest_xdist_make_scheduler,
)

__all__ = [
    "_garbage_is_looked_for_in_what_this_file_makes",
    "pytest_collection_modifyitems",
    "pytest_xdist_make_scheduler",
]
