"""spec.adapters, spec.lora: LoRA adapters that are served beside the model, each under a name of its own."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from llmservice_operator.api.base import ApiModel, knob
from llmservice_operator.api.uri import Source, parse

# No slash, unlike a model's name: it is a folder's name too.
AdapterName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]

# Shorter than a model's: the cost of a rule grows with the longest uri times the number of adapters.
AdapterUri = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class Adapter(ApiModel):
    """One LoRA adapter of the model."""

    name: AdapterName = Field(
        description="Name that a request gives as `model` to get the adapter.", examples=["support"]
    )
    uri: AdapterUri = Field(
        description="Where the adapter comes from, in the forms of spec.model.uri.", examples=["s3://adapters/support"]
    )

    @property
    def source(self) -> Source:
        """The parsed uri; raises InvalidSpec."""
        return parse(self.uri, f"spec.adapters[{self.name}].uri")


class LoRA(ApiModel):
    """Room for adapters: fixed when a pod starts, while the adapters themselves may change."""

    max_loras: int | None = knob(
        description="Most different adapters in one step (--max-loras); requests for others wait. Each takes GPU "
        "memory. Default: 1.",
        examples=[4],
        bounds=(1, 256),
        flag="--max-loras",
        effective=1,
    )
    max_lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] | None = knob(
        description="Highest rank of an adapter (--max-lora-rank, r in adapter_config.json). A higher one takes more "
        "memory for all of them. Default: 16.",
        examples=[32],
        flag="--max-lora-rank",
        effective=16,
    )
    max_cpu_loras: int | None = knob(
        description="Most adapters that are kept in the pod's memory (--max-cpu-loras); more are loaded from their "
        "files again when they are asked for. At least maxLoras. Default: as many as maxLoras.",
        examples=[16],
        bounds=(1, 4096),
        flag="--max-cpu-loras",
        effective=lambda lora: lora.max_loras or 1,
    )
