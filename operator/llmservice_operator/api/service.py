"""An LLMService as the operator works with it: parsed once, never changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import ValidationError

from llmservice_operator.api.errors import InvalidSpec, Problem
from llmservice_operator.api.spec import LLMServiceSpec

_REMEDY = "Correct it and apply the LLMService again; `kubectl explain llms.spec --recursive` lists the fields."


class Key(NamedTuple):
    """What one LLMService is called in queues and caches."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class LLMService:
    """One object of the API server."""

    name: str
    namespace: str
    uid: str
    generation: int
    resource_version: str
    is_deleting: bool
    spec: LLMServiceSpec
    status: Mapping[str, Any]
    annotations: Mapping[str, str]

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)

    @property
    def served_names(self) -> tuple[str, ...]:
        """What clients may give as `model`."""
        return self.spec.model.served_names or (self.name,)

    @classmethod
    def from_object(cls, obj: Mapping[str, Any]) -> "LLMService":
        """Parse what the API server stores; InvalidSpec where this operator cannot act on it."""
        metadata = obj["metadata"]
        return cls(
            name=metadata["name"],
            namespace=metadata["namespace"],
            uid=metadata.get("uid", ""),
            generation=metadata.get("generation", 0),
            resource_version=metadata.get("resourceVersion", ""),
            is_deleting="deletionTimestamp" in metadata,
            spec=parse_spec(obj.get("spec")),
            status=MappingProxyType(obj.get("status") or {}),
            annotations=MappingProxyType(metadata.get("annotations") or {}),
        )


def parse_spec(raw: object) -> LLMServiceSpec:
    """The spec as a value; InvalidSpec names every field that is wrong."""
    try:
        spec = LLMServiceSpec.model_validate({} if raw is None else raw, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidSpec(_problem(item["loc"], item["msg"]) for item in error.errors()) from None
    _ = spec.model.source
    return spec


def _problem(location: tuple[int | str, ...], message: str) -> Problem:
    path = "spec"
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return Problem(path, f"{message}.", _REMEDY)
