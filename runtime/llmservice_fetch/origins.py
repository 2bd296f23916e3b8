"""Maps a URI to its origin."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from llmservice_fetch import proxies
from llmservice_fetch.buckets import Bucket
from llmservice_fetch.clouds import CLOUDS
from llmservice_fetch.files import is_inside

if TYPE_CHECKING:
    from llmservice_fetch.hub import Hub


def schemes(*others: str) -> str:
    """The schemes that have an origin, and `others`, for messages: hf://, ... or az://."""
    words = [f"{scheme}://" for scheme in ("hf", *CLOUDS)] + [*others]
    return f"{', '.join(words[:-1])} or {words[-1]}"


def origin_of(uri: str, field: str, environment: Mapping[str, str], hide: Callable[[str], None]) -> Hub | Bucket | None:
    """The origin of hf:// or of a cloud's bucket; None for anything else. FetchFailed.

    `field` is the field of the spec that names it; `hide` is called with each secret of a bucket.
    """
    proxies.prepare(os.environ)
    scheme, _, rest = uri.partition("://")
    if scheme == "hf" and rest and is_inside(rest):
        # huggingface_hub is slow to import, and buckets do not need it.
        from llmservice_fetch.hub import Hub

        return Hub.of(rest, field, environment)
    return Bucket.of(uri, field, environment, hide)
