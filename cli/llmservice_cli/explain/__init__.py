"""The options of `llmservice explain`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from click import Context, Parameter

from llmservice_cli.options import OUTPUT
from llmservice_cli.parameters import Argument

DESCRIPTION = (
    "What a reason, a condition or a field of an LLMService means, and what to do about it. No cluster is asked."
)
EPILOG = """\
examples:
  llmservice explain                             every reason, a line each
  llmservice explain ModelNotFound               what happened, where to look, what to do, how it ends
  llmservice explain Ready                       a condition, and the reasons that it may have
  llmservice explain spec.batching.maxNumSeqs    a field: type, bounds, default, vLLM's flag
  llmservice explain spec.batching               its fields

Upper and lower case do not matter. A field is also found by its last name, or by vLLM's flag without its dashes.

exit codes:
  0  explained
  2  there is no such reason, condition or field; similar ones are named
"""


def topics(_: Context, __: Parameter, incomplete: str) -> list[str]:
    """What a shell completes with."""
    from llmservice_api.conditions import ConditionType
    from llmservice_api.reasons import Reason

    return [topic for topic in (*Reason, *ConditionType, "spec", "status") if topic.startswith(incomplete)]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What was typed."""

    topic: Annotated[
        str | None,
        Argument(metavar="REASON", help="a reason, a condition or a field; none: every reason", complete=topics),
    ] = None
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "table"
