"""Which hub or bucket a URI names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from llmservice_fetch.buckets import Bucket
from llmservice_fetch.files import is_inside

if TYPE_CHECKING:
    from llmservice_fetch.hub import Hub


def origin_of(uri: str, field: str, environment: Mapping[str, str], hide: Callable[[str], None]) -> Hub | Bucket | None:
    """Of hf://, s3://, gs:// and az://; None for anything else. FetchFailed.

    `field` is the field of the spec that names it; `hide` gets every secret of a bucket.
    """
    scheme, _, rest = uri.partition("://")
    if scheme == "hf" and rest and is_inside(rest):
        # huggingface_hub takes longer to import than all the rest, which buckets need not wait for.
        from llmservice_fetch.hub import Hub

        return Hub.of(rest, field, environment)
    return Bucket.of(uri, field, environment, hide)
