"""The command line, refused in vLLM's words where vLLM refuses it.

Which flags there are is llmservice_runtime's table, which a unit test holds against vLLM's own parser.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from llmservice_vllm.flags import Match
from llmservice_vllm.versions import flag_table

from tests.support.stand_in.engine import TOKENS_PER_GIB, Limits
from tests.support.stand_in.ranks import Ranks

_PROGRAM = "api_server.py"
_TABLE = flag_table("0.32")


@dataclass(frozen=True)
class Arguments:
    """What the stand-in heeds."""

    model: str
    served_model_names: tuple[str, ...]
    host: str | None
    port: int
    api_key: str | None
    middleware: tuple[str, ...]
    shutdown_timeout: int
    unlogged: frozenset[str] | None
    """Paths of which the access log says nothing; None: of all of them."""
    limits: Limits
    ranks: Ranks


def parse(args: Sequence[str], environment: Mapping[str, str]) -> Arguments:
    """Ends the process with 2, as argparse does, where vLLM would."""
    values = _values(args)

    def last(name: str) -> str | None:
        return values[name][-1] if values.get(name) else None

    model = last("--model") or ""
    queued = last("--max-num-queued-reqs")
    length = _length(last("--max-model-len"))
    return Arguments(
        model=model,
        served_model_names=tuple(values.get("--served-model-name") or (model,)),
        host=last("--host"),
        port=_integer("--port", last("--port") or "8000"),
        api_key=last("--api-key") or environment.get("VLLM_API_KEY"),
        middleware=tuple(values.get("--middleware", ())),
        shutdown_timeout=_integer("--shutdown-timeout", last("--shutdown-timeout") or "0"),
        unlogged=None
        if "--disable-uvicorn-access-log" in values
        else frozenset(filter(None, (last("--disable-access-log-for-endpoints") or "").split(","))),
        limits=Limits(
            max_model_len=length or Limits.max_model_len,
            max_num_seqs=_integer("--max-num-seqs", last("--max-num-seqs") or "128"),
            kv_cache_tokens=int(float(environment.get("VLLM_CPU_KVCACHE_SPACE", "1")) * TOKENS_PER_GIB),
            max_num_queued_reqs=None if queued is None else _integer("--max-num-queued-reqs", queued),
        ),
        ranks=_ranks(last, "--headless" in values, "--data-parallel-hybrid-lb" in values),
    )


def _ranks(last: Callable[[str], str | None], is_headless: bool, is_hybrid: bool) -> Ranks:
    if is_hybrid and is_headless:
        raise AssertionError("data_parallel_hybrid_lb is not applicable in headless mode")

    def number(name: str, default: int) -> int:
        return _integer(name, last(name) or str(default))

    engines = number("--data-parallel-size", 1)
    own = number("--data-parallel-size-local", engines)
    if own < engines:
        first, port = number("--data-parallel-start-rank", 0), number("--data-parallel-rpc-port", 29550)
        address = last("--data-parallel-address") or ""
        return Ranks(engines // own, first // own, address, port, is_headless, is_hybrid)
    address, port = last("--master-addr") or "127.0.0.1", number("--master-port", 29501)
    return Ranks(number("--nnodes", 1), number("--node-rank", 0), address, port, is_headless)


def _values(args: Sequence[str]) -> dict[str, list[str]]:
    """By long name; a flag that is given again adds to what it had where vLLM appends, else the last one counts."""
    values: dict[str, list[str]] = {}
    unknown: list[str] = []
    name: str | None = None
    for token in args:
        resolution = _TABLE.resolve(token)
        if isinstance(resolution, Match):
            name = resolution.flag.name
            before = values.get(name, []) if name == "--middleware" else []
            values[name] = before + ([] if resolution.value is None else [resolution.value])
        elif resolution is not None:
            name = None
            unknown.append(token)
        elif name is not None:
            values[name].append(token)
    if unknown:
        _refuse(f"unrecognized arguments: {' '.join(unknown)}")
    _check_choices(values)
    return values


def _check_choices(values: Mapping[str, Sequence[str]]) -> None:
    for name, given in values.items():
        flag = _TABLE.by_spelling[name]
        spelled = "/".join(flag.spellings)
        if flag.values == 1 and not given:
            _refuse(f"argument {spelled}: expected one argument")
        for value in given if flag.choices else ():
            if value not in flag.choices:
                choices = ", ".join(map(repr, flag.choices))
                _refuse(f"argument {spelled}: invalid choice: {value!r} (choose from {choices})")
        if flag.kind == "int" and flag.values == 1:
            for value in given:
                _integer(spelled, value)


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        _refuse(f"argument {name}: invalid int value: {text!r}")


def _length(text: str | None) -> int | None:
    """With vLLM's suffixes: k is 1000, K is 1024; auto and -1 leave it to the stand-in."""
    if text is None or text in ("auto", "-1"):
        return None
    factors = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20}
    return int(float(text[:-1]) * factors[text[-1]]) if text[-1] in factors else int(text)


def _refuse(message: str) -> NoReturn:
    print(f"usage: {_PROGRAM} [-h] [--headless] [--api-server-count API_SERVER_COUNT]", file=sys.stderr)
    print("                     [model_tag]", file=sys.stderr)
    print(f"{_PROGRAM}: error: {message}", file=sys.stderr, flush=True)
    sys.exit(2)
