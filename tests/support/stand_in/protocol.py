"""The OpenAI API's requests and answers, with vLLM's words for what it refuses."""

from __future__ import annotations

import json
import time
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

FINGERPRINT = "vllm-0.32.0-ffd71977"
DEFAULT_COMPLETION_TOKENS = 16
NATURAL_CHAT_TOKENS = 24
"""Of a chat answer that nobody limits; vLLM goes on to the model's last word or the end of its context."""
_PER_MESSAGE = 3
"""Tokens of a chat template around each message, with the tiny model's."""


class Refused(Exception):
    """The request is answered with an error."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body: Json = {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True)
class Ask:
    """A valid request for tokens."""

    model: str
    prompt: str
    prompt_tokens: int
    tokens: int
    is_chat: bool
    is_stream: bool
    with_usage: bool
    with_running_usage: bool
    finish: str = "length"


def parse(body: bytes, content_type: str, *, is_chat: bool, names: Sequence[str], max_model_len: int) -> Ask:
    """Refused where vLLM answers 400 or 404."""
    if content_type and content_type.split(";")[0].strip().lower() != "application/json":
        raise _invalid("  Unsupported Media Type: Only 'application/json' is allowed", None)
    request = _document(body)
    prompt, length = _chat_prompt(request) if is_chat else _prompt(request)
    limit = _max_tokens(request, is_chat)
    _check_sampling(request)
    options = request.get("stream_options")
    stream = bool(request.get("stream"))
    if options is not None and not stream:
        raise _parameter("Stream options can only be defined when `stream=True`.", "stream_options")
    model = request.get("model") or names[0]
    if model not in names:
        text = f"The model `{model}` does not exist. Valid aliases: {', '.join(names)}."
        raise Refused(404, text, "NotFoundError", "model")
    tokens = _tokens(limit, length, bool(prompt), max_model_len)
    return Ask(
        model=model,
        prompt=prompt,
        prompt_tokens=length,
        tokens=tokens,
        is_chat=is_chat,
        is_stream=stream,
        with_usage=bool((options or {}).get("include_usage")),
        with_running_usage=bool((options or {}).get("continuous_usage_stats")),
        finish="stop" if is_chat and limit is None and tokens == NATURAL_CHAT_TOKENS else "length",
    )


def tokens(body: bytes, max_model_len: int) -> Json:
    """The answer of /tokenize: a token for four characters, the same on every replica. Refused."""
    request = _document(body)
    text, _ = _chat_prompt(request) if "messages" in request else _prompt(request)
    found = [zlib.crc32(text[at : at + 4].encode()) % 32_000 for at in range(0, len(text), 4)]
    return {"count": len(found), "max_model_len": max_model_len, "tokens": found, "token_strs": None}


def _document(body: bytes) -> Json:
    try:
        request = json.loads(body)
    except ValueError as error:
        text = str(error).partition(":")[0]
        raise _field("json_invalid", "body.1", "JSON decode error", {}, {"error": text}) from None
    if not isinstance(request, dict):
        words = "Input should be a valid dictionary or object to extract fields from"
        raise _field("model_attributes_type", "body", words, request)
    return request


def _prompt(request: Json) -> tuple[str, int]:
    prompt = request.get("prompt")
    if not prompt:
        raise _parameter("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(prompt, list) and all(isinstance(item, int) for item in prompt):
        return "", len(prompt)
    text = prompt if isinstance(prompt, str) else "".join(map(str, prompt))
    return text, len(text)


def _chat_prompt(request: Json) -> tuple[str, int]:
    if "messages" not in request:
        raise _field("missing", "body.messages", "Field required", request)
    messages = request["messages"]
    if not isinstance(messages, list):
        raise _field("list_type", "body.messages", "Input should be a valid list", messages)
    if not messages:
        raise Refused(400, "Cannot apply chat template to an empty conversation. Provide at least one message.")
    text = "".join(str(message.get("content") or "") for message in messages)
    return text, len(text) + _PER_MESSAGE * len(messages)


def _max_tokens(request: Json, is_chat: bool) -> int | None:
    names = ("max_completion_tokens", "max_tokens") if is_chat else ("max_tokens",)
    for name in names:
        value = request.get(name)
        if value is None:
            continue
        try:
            number = int(value)
        except (TypeError, ValueError):
            words = "Input should be a valid integer, unable to parse string as an integer"
            raise _field("int_parsing", f"body.{name}", words, value) from None
        if number < 1:
            raise _parameter(f"{name} must be at least 1, got {number}.", name, number)
        return number
    return None if is_chat else DEFAULT_COMPLETION_TOKENS


def _check_sampling(request: Json) -> None:
    temperature, top_p, count = request.get("temperature"), request.get("top_p"), request.get("n")
    for name, value in (("temperature", temperature), ("top_p", top_p)):
        if value is not None and not isinstance(value, int | float):
            words = "Input should be a valid number, unable to parse string as a number"
            raise _field("float_parsing", f"body.{name}", words, value)
    if temperature is not None and temperature < 0:
        raise _parameter(
            f"temperature must be non-negative, got {float(temperature)}.", "temperature", float(temperature)
        )
    if top_p is not None and not 0 < top_p <= 1:
        raise _parameter(f"top_p must be in (0, 1], got {float(top_p)}.", "top_p", float(top_p))
    if isinstance(count, int) and count < 1:
        raise Refused(400, f"n must be at least 1, got {count}.")
    if isinstance(count, int) and count > 1:
        raise Refused(400, f"n must be 1 when using greedy sampling, got {count}.")


def _tokens(limit: int | None, prompt_tokens: int, is_text: bool, max_model_len: int) -> int:
    """As many as were asked for, or fit."""
    if limit is not None and limit > max_model_len:
        words = f"max_tokens={limit} cannot be greater than max_model_len={max_model_len}. Please request fewer output"
        raise _parameter(f"{words} tokens.", "max_tokens", limit)
    if prompt_tokens > max_model_len:
        # A text is counted only as far as it takes to see that it is too long.
        seen, counted = (max_model_len + 1, "at least ") if is_text else (prompt_tokens, "")
        words = (
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"{counted}{seen} input tokens, which exceeds this limit even without any output tokens. Please reduce "
            "the length of the input prompt."
        )
        raise _parameter(words, "input_tokens", seen)
    if prompt_tokens == max_model_len:
        raise _parameter("max_tokens must be at least 1, got 0.", "max_tokens", 0)
    return min(NATURAL_CHAT_TOKENS if limit is None else limit, max_model_len - prompt_tokens)


def _parameter(message: str, name: str, value: object = None) -> Refused:
    detail = f"parameter={name}" + ("" if value is None else f", value={value}")
    return Refused(400, f"{message} ({detail})", param=name)


def _field(kind: str, place: str, words: str, given: object, context: Json | None = None) -> Refused:
    """What pydantic says of one field."""
    shown = f"<dict of {len(given)} items>" if isinstance(given, dict) else given
    shown = f"<list of {len(shown)} items>" if isinstance(shown, list) else shown
    detail: Json = {"type": kind, "loc": place, "msg": words, "input": shown}
    return _invalid(f"  {detail | ({'ctx': context} if context else {})}", place)


def _invalid(text: str, place: str | None) -> Refused:
    return Refused(400, f"1 validation error:\n{text}", "Bad Request", place)


class Answer:
    """The documents of one answer; all of them carry the same id."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._id = f"{'chatcmpl' if ask.is_chat else 'cmpl'}-{uuid.uuid4().hex[:16]}"
        self._created = int(time.time())

    def whole(self, text: str, generated: int, finish: str) -> Json:
        """The answer of a request that did not stream."""
        ending: Json = {"finish_reason": finish, "stop_reason": None, "token_ids": None}
        usage = self._usage(generated) | {"prompt_tokens_details": None, "completion_tokens_details": None}
        last: Json = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
        middle: Json = {"service_tier": None, "system_fingerprint": FINGERPRINT, "usage": usage}
        prompt: Json = {"prompt_logprobs": None, "prompt_token_ids": None}
        if not self._ask.is_chat:
            choice = {"index": 0, "text": text, "logprobs": None, **ending, **prompt, "routed_experts": None}
            return {**self._head("text_completion"), "choices": [choice], **middle, **last}
        unset = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        message = {"role": "assistant", "content": text, **unset}
        choice = {"index": 0, "message": message, "logprobs": None, **ending, "routed_experts": None}
        return {**self._head("chat.completion"), "choices": [choice], **middle, **prompt, "prompt_text": None, **last}

    def first(self) -> Json | None:
        """What a chat stream begins with."""
        if not self._ask.is_chat:
            return None
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        document: Json = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return self._with_usage({**document, "prompt_token_ids": None, "prompt_text": None}, 0)

    def piece(self, text: str, generated: int, finish: str | None) -> Json:
        """One token of a stream."""
        choice: Json = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self._ask.is_chat:
            choice |= {"delta": {"content": text}, "token_ids": None}
            choice |= {} if finish is None else {"stop_reason": None}
        else:
            choice |= {"text": text, "stop_reason": None, "prompt_token_ids": None, "token_ids": None}
        kind = "chat.completion.chunk" if self._ask.is_chat else "text_completion"
        document = self._with_usage({**self._head(kind), "choices": [choice]}, generated)
        is_last = finish is not None and not self._ask.with_usage
        return document | ({"system_fingerprint": FINGERPRINT} if is_last else {})

    def usage(self, generated: int) -> Json:
        """What a stream ends with where it was asked for."""
        kind = "chat.completion.chunk" if self._ask.is_chat else "text_completion"
        document = {**self._head(kind), "choices": [], "usage": self._usage(generated)}
        return document | {"system_fingerprint": FINGERPRINT}

    def _with_usage(self, document: Json, generated: int) -> Json:
        return document | ({"usage": self._usage(generated)} if self._ask.with_running_usage else {})

    def _head(self, kind: str) -> Json:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._ask.model}

    def _usage(self, generated: int) -> Json:
        prompt = self._ask.prompt_tokens
        return {"prompt_tokens": prompt, "total_tokens": prompt + generated, "completion_tokens": generated}


def cards(names: Sequence[str], root: str, max_model_len: int, adapters: Mapping[str, str]) -> Json:
    """GET /v1/models."""
    base = [_card(name, root, None, max_model_len) for name in names]
    return {"object": "list", "data": base + [_card(n, path, names[0], None) for n, path in adapters.items()]}


def _card(name: str, root: str, parent: str | None, max_model_len: int | None) -> Json:
    now = int(time.time())
    permission = {
        "id": f"modelperm-{uuid.uuid4().hex[:16]}", "object": "model_permission", "created": now,
        "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True, "allow_search_indices": False,
        "allow_view": True, "allow_fine_tuning": False, "organization": "*", "group": None, "is_blocking": False,
    }  # fmt: skip
    card: Json = {"id": name, "object": "model", "created": now, "owned_by": "vllm", "root": root, "parent": parent}
    return card | {"max_model_len": max_model_len, "permission": [permission]}
