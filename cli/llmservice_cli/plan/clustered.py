"""`llmservice plan` against a cluster: each question with what the cluster has for it."""

from __future__ import annotations

from llmservice_operator.api.service import LLMService

from llmservice_cli.cluster import Connection, connect
from llmservice_cli.errors import CliError, ExitCode
from llmservice_cli.render.desired import namespace_of

from .arguments import Options
from .asked import Asked
from .compare import compare
from .in_cluster import Reader, Seen, answered, of_options, on_offer
from .inspected import with_facts
from .present import compared, present
from .questions import Question

Wanted = tuple[Question, LLMService, Seen]


async def run(asked: Asked, options: Options) -> ExitCode:
    """Print the plans, or the grids; CliError where the cluster does not answer or a right is missing."""
    try:
        async with connect(options) as connection:
            reader = Reader(connection.kube)
            found = [await _seen(each, asked, reader, connection, options) for each in asked.questions]
    except CliError as error:
        error.exit_code = ExitCode.NOT_ASKED  # 1 would say that it does not fit
        raise
    if options.compare:
        grids = [compare(on_offer(*each)) for each in found]
        return asked.ended(compared(grids, options, is_list=asked.is_list))
    answers = [answered(*each, asked.given) for each in found]
    return asked.ended(present(answers, options, is_list=asked.is_list))


async def _seen(question: Question, asked: Asked, reader: Reader, connection: Connection, options: Options) -> Wanted:
    service = question.service or of_options(question, asked.given)
    namespace = namespace_of({"metadata": {"namespace": question.namespace}}, options.namespace, connection.namespace)
    question = await with_facts(question, service, namespace, connection.kube)
    return question, service, await reader.seen(service, namespace)
