"""`llmservice explain`: the data of docs/reference/reasons.md and fields.md in the terminal."""

from __future__ import annotations

from llmservice_operator.api.reasons import Reason

from llmservice_cli.documents import show
from llmservice_cli.errors import ExitCode
from llmservice_cli.terminal import rendered

from . import page
from .arguments import Options
from .topic import field, reason_or_condition


def run(options: Options) -> ExitCode:
    """Print it. WrongUsage for what there is not."""
    if options.topic is None:
        found = page.every_reason()
    elif (named := reason_or_condition(options.topic)) is None:
        found = page.of_field(*field(options.topic))
    else:
        found = page.of_reason(named) if isinstance(named, Reason) else page.of_condition(named)
    show(options.output, lambda: [rendered(found.rows())], found.document)
    return ExitCode.DONE
