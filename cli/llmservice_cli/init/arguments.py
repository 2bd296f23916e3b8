"""The options of `llmservice init`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

ACTIVATOR = "llmservice-system/llmservice-operator-activator"
"""Of docs/install.md."""
DESCRIPTION = "Print the manifest of an LLMService to begin with. Nothing is read or written in a cluster."
EPILOG = f"""\
examples:
  llmservice init chat --model hf://Qwen/Qwen2.5-7B-Instruct > chat.yaml
  llmservice init chat --model hf://Qwen/Qwen2.5-7B-Instruct --min-replicas 0 --max-replicas 4
  llmservice init chat -n team --model hf://Qwen/Qwen2.5-7B-Instruct --min-replicas 0 --api-key-secret keys/api-key

With --min-replicas 0 and --api-key-secret it also prints a Role and a RoleBinding: the activator may then read that one
Secret, to check keys while no replica serves. --activator names its service account (default: {ACTIVATOR}).
"""


def pair(text: str) -> tuple[str, str]:
    """Two names with a slash between."""
    first, slash, second = text.partition("/")
    if not (first and slash and second) or "/" in second:
        raise BadParameter(f"must be two names with a slash between, not {text!r}")
    return first, second


@dataclass(frozen=True, kw_only=True)
class Options:
    """What was typed."""

    name: Annotated[str, Argument(metavar="NAME", help="of the LLMService")]
    namespace: Annotated[
        str | None,
        Option("--namespace", "-n", metavar="NAME", help="written into the manifests; default: none, kubectl's holds"),
    ] = None
    model: Annotated[str, Option("--model", metavar="URI", help="spec.model.uri, e.g. hf://ORG/NAME")]
    min_replicas: Annotated[
        int | None, Option("--min-replicas", metavar="N", help="replicas follow the load; 0: none without requests")
    ] = None
    max_replicas: Annotated[
        int | None, Option("--max-replicas", metavar="N", help="the most replicas; default: the fewest, but 1")
    ] = None
    api_key_secret: Annotated[
        Any,
        Option("--api-key-secret", parser=pair, metavar="SECRET/KEY", help="a Secret with the API keys of clients"),
    ] = None
    activator: Annotated[
        Any,
        Option(
            "--activator",
            parser=pair,
            metavar="NAMESPACE/ACCOUNT",
            help="service account of the chart's activator",
            show_default=False,
        ),
    ] = ACTIVATOR
