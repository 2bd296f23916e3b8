"""Options that would have no effect on what the others ask for."""

from __future__ import annotations

from collections.abc import Iterable

from llmservice_cli.errors import WrongUsage

from .arguments import Options


def named(fields: Iterable[str]) -> str:
    """Fields of Options as they are typed."""
    return ", ".join(sorted(f"--{field.replace('_', '-')}" for field in fields))


def check(options: Options) -> None:
    """WrongUsage for those of a measurement. --batch and --window may stay while one tries disciplines."""
    if "slo_share" in options.given and not options.slo:
        raise WrongUsage("--slo-share is of an objective, and there is none", "give one, such as --slo ttft:500ms")
