"""spec.multimodal: pictures, sound and video beside the text."""

from typing import Annotated

from pydantic import StringConstraints

from llmservice_operator.api.base import SET, ApiModel, Knob, Many, leaf

ANY_DOMAIN = "*"

# vLLM compares the whole name of an address's host, in lower case.
MediaDomain = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=r"^([*]|[a-z0-9]([-a-z0-9.]*[a-z0-9])?)$")
]


class Multimodal(ApiModel):
    """Pictures, sound and video that clients send beside the text."""

    allowed_media_domains: Annotated[Many[MediaDomain], Knob(("--allowed-media-domains",))] = leaf(
        tuple,
        description="Hosts that the server fetches media from when a request names an address "
        "(--allowed-media-domains): whole names, without scheme or port. Default: none, clients send media in the "
        'request. ["*"]: every host, also inside the cluster. See docs/serving/multimodal.md.',
        examples=[["images.example.com"]],
        max_length=64,
        json_schema_extra=SET,
    )
