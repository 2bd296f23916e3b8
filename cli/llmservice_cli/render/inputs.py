"""What `render` and `diff` make of a file of LLMServices, with the facts of their model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from llmservice_operator.api.errors import Problem
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.inspection import inspection_key
from llmservice_operator.decide.fit.model_facts import record_of

from llmservice_cli.errors import BadInput
from llmservice_cli.manifests import File, Json

from .preview import Preview


async def previews(
    file: File, preview: Callable[[Json], Awaitable[Preview]]
) -> tuple[list[Preview], list[Problem], tuple[str, ...]]:
    """One for each LLMService of a file; what is wrong with the others; notes about other objects."""
    made: list[Preview] = []
    problems: list[Problem] = []
    for each in file.services:
        with each.collecting(problems):
            made.append(await preview(each.manifest))
    return made, problems, file.notes


def with_config(obj: Json, place: str | None) -> Json:
    """The stored LLMService with status.model as an inspection of this model would leave it."""
    if place is None:
        return obj
    from llmservice_fetch.inspection import inspect

    from llmservice_cli.plan.models import with_place

    found = inspect(place, {})
    if found.failure is not None:
        raise BadInput.of(
            "--config", with_place(place, found.failure.message), "Give the model's config.json, or the folder with it."
        )
    model = record_of(inspection_key(LLMService.from_object(obj).spec), found)
    return {**obj, "status": {**(obj.get("status") or {}), "model": model}}
