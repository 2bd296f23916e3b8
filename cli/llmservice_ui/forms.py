"""Bodies of requests, with a bound that holds while they are read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

FORM = "application/x-www-form-urlencoded"
MOST_FIELDS = 20
BODY_SECONDS = 15.0


async def body_of(request: Request, most: int, kind: str) -> bytes:
    """HTTPException where the body is of another kind, has more than `most` bytes, or takes more than BODY_SECONDS."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != kind:
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Send {kind}.")
    parts, left = [], most
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                left -= len(part)
                if left < 0:
                    raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The form has more than {most} bytes.")
                parts.append(part)
    except TimeoutError:
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, f"The form did not arrive within {BODY_SECONDS:g} s.") from None
    return b"".join(parts)


async def form_of(request: Request, most: int) -> Mapping[str, str]:
    """The fields of a form; of one that comes twice, the last."""
    body = await body_of(request, most, FORM)
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"The form has more than {MOST_FIELDS} fields.") from None
