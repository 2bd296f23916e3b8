"""What the options of `llmservice probe` mean together, and the values that they make."""

from __future__ import annotations

from collections.abc import Iterator

from llmservice_cli.errors import WrongUsage
from llmservice_cli.load.server import check_server

from .arguments import DEFAULT_RATE, Options
from .row import Mode
from .sender import LoadOptions


def check(options: Options) -> None:
    """WrongUsage for options that exclude each other, or that would have no effect."""
    check_server(options, "probe")
    if options.url and options.image:
        raise WrongUsage("--image is of the pod, and with --url there is none", "leave it out, or name the LLMService")
    if options.name and options.api_key_env:
        remedy = "leave it out: by NAME the key is that of spec.endpoint.apiKeySecretRef"
        raise WrongUsage("--api-key-env goes with --url", remedy)
    if options.rate is not None and options.concurrency is not None:
        raise WrongUsage("--rate and --concurrency are two ways to pace the load", "give one of them")
    if options.output != "table" and options.rows:
        raise WrongUsage("-o is the form of a report, and --rows is instead of one", "give one of them")


def load_options(options: Options) -> LoadOptions:
    is_paced = options.concurrency is None
    return LoadOptions(
        duration=options.duration,
        modes=tuple(Mode(mode) for mode in options.mode or Mode),
        output_tokens=options.output_tokens,
        rate=(options.rate or DEFAULT_RATE) if is_paced else None,
        concurrency=options.concurrency,
    )


def words_for_pod(options: Options) -> Iterator[str]:
    """The same load as a command line, for the pod that sends it; without where to."""
    load = load_options(options)
    yield from ("probe", "--rows", "--quiet")
    yield from ("--rate", str(load.rate)) if load.rate is not None else ("--concurrency", str(load.concurrency))
    yield from ("--duration", str(load.duration), "--timeout", str(options.timeout), "--retries", str(options.retries))
    for mode in load.modes:
        yield from ("--mode", str(mode))
    yield from ("--output-tokens", ",".join(str(count) for count in load.output_tokens))
    yield from (f"--prompt={options.prompt}", "--api", options.api)
