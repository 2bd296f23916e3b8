"""What vLLM's log says of one start: memory, times and back ends, as vLLM 0.26 and 0.32 write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from llmservice_runtime.supervisor.log_reader import parse_line

Value = float | int | str
Timed = tuple[float, str]
"""Seconds since the process was started, and a line that came then."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that figures are read from."""

    template: str
    """The words as they stand in vLLM's source, with {} for each value: tests look them up in vLLM 0.26 and 0.32."""
    names: tuple[str, ...]
    """Of the values, in their order; an empty name is a value that nobody needs."""
    versions: tuple[str, ...] = ("0.26", "0.32")

    @property
    def pattern(self) -> re.Pattern[str]:
        """It matches the text of a line without its prefix."""
        return re.compile(
            re.escape(self.template).replace(r"\{\}", r"(\S+?)").replace(r"\ ", " ") + r"(?=[\s,.:;)%sx]|$)"
        )


OLD, NEW = ("0.26",), ("0.32",)
LINES: tuple[LogLine, ...] = (
    LogLine("Model loading took {} GiB memory and {} seconds", ("weights_gib", "load_seconds")),
    LogLine("Model loading took {} GiB and {} seconds", ("weights_gib", "load_seconds"), OLD),
    LogLine("Available KV cache memory: {} GiB", ("kv_cache_gib",)),
    LogLine("KV cache size: {} tokens", ("kv_cache_tokens",)),
    LogLine("Maximum concurrency for {} tokens per request: {}x", ("max_model_len", "max_concurrency")),
    LogLine("init engine (profile, create kv cache, warmup model) took {} s", ("engine_init_seconds",)),
    LogLine("torch.compile took {} s in total", ("compile_seconds",)),
    LogLine("Graph capturing finished in {} secs, took {} GiB", ("graph_seconds", "graph_gib")),
    LogLine(
        "CUDA graph pool memory: {} GiB (actual), {} GiB (estimated)", ("graph_pool_gib", "graph_pool_estimated_gib")
    ),
    LogLine(
        "Actual usage is {} GiB for weight, {} GiB for peak activation, {} GiB for non-torch memory",
        ("", "activation_gib", "non_torch_gib"),
        OLD,
    ),
    LogLine(
        "Actual usage is {} GiB for consumed memory (weights + non-torch), {} GiB for peak activation",
        ("consumed_gib", "activation_gib"),
        NEW,
    ),
    LogLine("Using {} attention backend out of potential backends", ("attention_backend",)),
    LogLine("Sleep mode freed {} GiB memory, {} GiB memory is still in use", ("sleep_freed_gib", "sleep_used_gib")),
    LogLine("the estimated maximum model length is {}", ("estimated_max_len",)),
)

PHASES: tuple[tuple[str, str], ...] = (
    ("imports of the API server", "Resolved architecture"),
    ("engine process", "Initializing a V1 LLM engine"),
    ("imports of the worker", "Starting to load model"),
    ("weights", "Model loading took"),
    ("compile and profile", "Available KV cache memory"),
    ("CUDA graphs and warm-up", "init engine (profile"),
    ("HTTP server", "Application startup complete"),
)
"""Each phase of a start and the words of the line that ends it. A phase whose line does not come counts to the next."""


def figures(lines: Iterable[str]) -> dict[str, Value]:
    """Every value that the log names; the last one of a name counts."""
    found: dict[str, Value] = {}
    readers = [(one.pattern, one.names) for one in LINES]
    for raw in lines:
        text = parse_line(raw).text
        for pattern, names in readers:
            if match := pattern.search(text):
                values = zip(names, match.groups(), strict=True)
                found |= {name: _value(value) for name, value in values if name}
    return found


def _value(text: str) -> Value:
    plain = text.replace(",", "")
    for kind in (int, float):
        try:
            read: Callable[[str], int | float] = kind
            return read(plain)
        except ValueError:
            continue
    return text


def phases(lines: Iterable[Timed]) -> Mapping[str, float]:
    """Seconds of each phase of a start, in order."""
    found: dict[str, float] = {}
    before, waiting = 0.0, list(PHASES)
    for moment, text in lines:
        place = next((index for index, (_, words) in enumerate(waiting) if words in text), None)
        if place is not None:
            found[waiting[place][0]] = round(moment - before, 2)
            before, waiting = moment, waiting[place + 1 :]
    return found
