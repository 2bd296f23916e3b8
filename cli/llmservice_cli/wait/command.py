"""`llmservice wait`: ends as soon as the answer is known, and not only when it is yes."""

from __future__ import annotations

from llmservice_api.conditions import ConditionType

from llmservice_cli.cluster import connect
from llmservice_cli.errors import CliError, ExitCode

from .arguments import Options
from .until import Wish, tell, until_known


async def run(options: Options) -> ExitCode:
    """Print the last word on standard output, or what stands in the way on standard error."""
    condition = ConditionType(options.condition)
    try:
        async with connect(options) as connection:
            wish = Wish(connection.namespace, options.name, condition, options.timeout, options.quiet)
            found = await until_known(connection, wish)
    except CliError as error:
        # Of the service nothing is known, and 1 would say that it cannot become what was asked for.
        error.exit_code = ExitCode.NOT_ASKED
        raise
    return tell(wish, found, options.output)
