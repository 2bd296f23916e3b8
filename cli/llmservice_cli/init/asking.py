"""Questions at a terminal, on standard error: standard output is the manifest's."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from llmservice_cli.errors import WrongUsage
from llmservice_cli.plan import values
from llmservice_cli.plan.models import meant

from .arguments import Options, pair
from .world import World, shown

_BOUNDS = re.compile(r"(\d{1,6})(?:\s*-\s*(\d{1,6}))?")
ANY, CPU, OWN, NONE = "any", "cpu", "own", "none"


def is_asked_for(options: Options) -> bool:
    """Whether questions are to be asked: something is missing, and somebody is there."""
    return (options.name is None or options.model is None) and not options.yes and sys.stdin.isatty()


def without_questions(options: Options) -> None:
    """WrongUsage that names what is missing."""
    missing = [flag for flag, value in (("NAME", options.name), ("--model", options.model)) if value is None]
    if missing:
        raise WrongUsage(f"{' and '.join(missing)} must be given", "give them, or run it on a terminal, where it asks")


def identity(options: Options) -> Options:
    """With a model and a name."""
    model = options.model or _ask("model: hf://ORG/NAME or ORG/NAME, s3://, gs:// or az://BUCKET/PREFIX, ...", _text)
    name = options.name or _ask("name of the LLMService", _name, default=proposed_name(model))
    return replace(options, name=name, model=model)


def wishes(options: Options, world: World) -> Options:
    """With what else matters, as far as it is not given; the cluster says what there is."""
    options = _where(options, world)
    if options.max_model_len is None:
        own = world.model.architecture.max_position_embeddings if world.model and world.model.architecture else None
        of_model = f"; {OWN}: the model's {own:,}, or what fits" if own else f"; {OWN}: the model's, or what fits"
        length = _ask(f"longest request in tokens, such as 16K{of_model}", _length, default=OWN)
        options = replace(options, max_model_len=None if length == OWN else length)
    if (options.replicas, options.min_replicas, options.max_replicas) == (None, None, None):
        said = "replicas: a number, or FEWEST-MOST to follow the load (0-3: none without requests)"
        fewest, most = _ask(said, _bounds, default="1")
        fixed = {"replicas": None if fewest == 1 else fewest}
        options = replace(options, **(fixed if most is None else {"min_replicas": fewest, "max_replicas": most}))
    if options.api_key_secret is None:
        key = _ask("Secret and key with the API keys of clients, SECRET/KEY", _pair_or_none, default=NONE)
        options = replace(options, api_key_secret=key)
    if options.min_replicas == 0 and options.api_key_secret and options.namespace is None:
        return replace(options, namespace=_ask("namespace, which the rights on the Secret are for", _name))
    return options


def proposed_name(model: str) -> str:
    """Of the last part of a uri; `chat` where there is nothing to use."""
    last = model.rstrip("/").rpartition("/")[2].partition("@")[0].lower()
    return re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:40].strip("-") or "chat"


def _where(options: Options, world: World) -> Options:
    if options.cpu or options.gpu:
        return options
    offered = world.gpus
    has = f"; the cluster has {', '.join(shown(offered))}" if offered else ""
    said = f"GPU: a product, {CPU}, or {ANY} that fits{has}"
    where = _ask(said, _text, default=ANY if offered or not world.seen else CPU)
    if where == CPU:
        return replace(options, cpu=True)
    return options if where == ANY else replace(options, gpu=[where])


def _ask(said: str, read: Callable[[str], Any], default: str | None = None) -> Any:
    """Until an answer can be read; an end of standard input ends it."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    shown_default = "" if default is None else f" [{default}]"
    with _interruptible():
        while True:
            console.print(f"{said}{shown_default}: ", end="", markup=False, soft_wrap=True)
            line = sys.stdin.readline()
            if not line:
                raise WrongUsage("standard input ended before the last answer", "answer, or give all of it as options")
            try:
                return read(line.strip() or default or "")
            except ValueError as refused:
                console.print(f"  {refused}", markup=False, soft_wrap=True)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends it at once: the handler of asyncio would wait until a line is there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _text(answer: str) -> str:
    if not answer:
        raise ValueError("Write something.")
    return meant(answer, [])


def _name(answer: str) -> str:
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", answer):
        raise ValueError("Write lowercase letters, digits and -, a letter first.")
    return answer


def _length(answer: str) -> str:
    if answer != OWN:
        values.length(answer)
    return answer


def _bounds(answer: str) -> tuple[int, int | None]:
    found = _BOUNDS.fullmatch(answer)
    if found is None or (found[2] is not None and int(found[2]) < max(1, int(found[1]))):
        raise ValueError("Write a number such as 2, or two such as 0-3.")
    return int(found[1]), None if found[2] is None else int(found[2])


def _pair_or_none(answer: str) -> tuple[str, str] | None:
    if answer == NONE:
        return None
    first, slash, second = answer.partition("/")
    if not (first and slash and second) or "/" in second:
        raise ValueError(f"Write two names with a slash between, or {NONE}.")
    return pair(answer)
