"""The builders of the kinds in `api/child_kinds.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module

from llmservice_operator.api.child_kinds import CHILD_KINDS
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.meta import Manifest
from llmservice_operator.build.settings import Settings

Builder = Callable[[LLMService, Settings], Manifest | None]

BUILDERS: Mapping[str, Builder] = {
    child.kind: import_module(f"{__package__}.{child.builder}").manifest for child in CHILD_KINDS
}
"""By kind."""


def manifests(service: LLMService, settings: Settings) -> Iterator[Manifest]:
    """Of the children that this service is to have, in the order of CHILD_KINDS."""
    for build in BUILDERS.values():
        if (manifest := build(service, settings)) is not None:
            yield manifest
