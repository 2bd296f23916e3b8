"""spec.generation: how answers are sampled and read."""

from typing import Annotated

from pydantic import Field, StringConstraints

from llmservice_operator.api.base import ApiModel, Knob, knob, section
from llmservice_operator.api.engine import MAX_TOKENS

# vLLM looks parsers up when it starts, and plugins add some: the shape of a name, not a list.
ParserName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class GenerationDefaults(ApiModel):
    """Sampling parameters of requests that do not say otherwise; what is left out is the model's own."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = knob(
        description="Randomness: 0 always takes the likeliest token.", examples=[0.7]
    )
    top_p: Annotated[float, Field(ge=0.01, le=1)] | None = knob(
        description="Choose among the likeliest tokens that together have this probability; 1 for all.", examples=[0.8]
    )
    top_k: int | None = knob(
        description="Choose among this many of the likeliest tokens; 0 for all.", examples=[20], bounds=(0, 16_777_216)
    )
    min_p: Annotated[float, Field(ge=0, le=1)] | None = knob(
        description="Leave out tokens that are less likely than this share of the likeliest one's probability.",
        examples=[0.05],
    )
    repetition_penalty: Annotated[float, Field(ge=0.01, le=2)] | None = knob(
        description="Above 1, tokens that came already are made less likely.", examples=[1.05]
    )
    max_tokens: int | None = knob(
        description="Most tokens of an answer, where the request names no limit.",
        examples=[2048],
        bounds=(1, MAX_TOKENS),
    )


class Generation(ApiModel):
    """How answers are sampled, and what is read out of them."""

    tool_call_parser: ParserName | None = knob(
        description="Read tool calls out of answers with this parser of vLLM's, and let the model choose to call "
        "(--tool-call-parser, --enable-auto-tool-choice). It must be the one for the model's format.",
        examples=["hermes"],
        flag=("--enable-auto-tool-choice", "--tool-call-parser"),
    )
    reasoning_parser: ParserName | None = knob(
        description="Keep a model's thinking apart from its answer with this parser of vLLM's (--reasoning-parser). "
        "It must be the one for the model's format.",
        examples=["qwen3"],
        flag="--reasoning-parser",
    )
    seed: int | None = knob(
        description="Seed of the random numbers (--seed) of requests that bring none. Default: 0.",
        examples=[7],
        bounds=(0, 4_294_967_295),
        flag="--seed",
        silent=0,
        effective=0,
    )
    defaults: Annotated[GenerationDefaults, Knob(("--override-generation-config",))] = section(
        GenerationDefaults,
        "Sampling parameters of requests that do not say otherwise (--override-generation-config); what is left out "
        "is as the model's generation_config.json says.",
    )
