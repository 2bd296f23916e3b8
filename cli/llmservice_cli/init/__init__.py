"""The options of `llmservice init`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from click import BadParameter

from llmservice_cli.options import CLUSTER, OUTPUT, Scope
from llmservice_cli.parameters import Argument, Option

ACTIVATOR = "llmservice-system/llmservice-operator-activator"
"""Of docs/install.md."""
DESCRIPTION = """\
Print the manifest of an LLMService to begin with, planned for what the cluster has: GPU, number of GPUs and longest
request, each with the figures that it was chosen by. On a terminal it asks for what is not given.
"""
EPILOG = f"""\
examples:
  llmservice init                                                    asks
  llmservice init chat --model Qwen/Qwen2.5-7B-Instruct > chat.yaml
  llmservice init chat --model hf://Qwen/Qwen2.5-7B-Instruct --gpu L4 --max-model-len 16K --out chat.yaml
  llmservice init chat --model hf://Qwen/Qwen2.5-7B-Instruct --min-replicas 0 --max-replicas 4
  llmservice init chat -n team --model hf://Qwen/Qwen2.5-7B-Instruct --min-replicas 0 --api-key-secret keys/api-key
  llmservice init chat --model hf://Qwen/Qwen2.5-7B-Instruct --offline | kubectl apply -f -

Nothing is changed in a cluster. It reads nodes, and pods of all namespaces, where a kubeconfig is to be had, and the
model's config.json where the model is on a hub or in a bucket; what cannot be read is said on standard error, and is
left to the operator. --offline reads neither.

With --min-replicas 0 and --api-key-secret it also prints a Role and a RoleBinding: the activator may then read that one
Secret, to check keys while no replica serves. --activator names its service account (default: {ACTIVATOR}).

exit codes:
  0  printed
  1  it does not fit, and the message says what would help; nothing is printed without --force
  2  wrong arguments, or the operator would refuse the manifest
"""
WHERE, LOAD, ACCESS = "where it runs", "how much of it", "who may use it, and what it may read"
ANSWER = "the answer"


def pair(text: str) -> tuple[str, str]:
    """Two names with a slash between."""
    first, slash, second = text.partition("/")
    if not (first and slash and second) or "/" in second:
        raise BadParameter(f"must be two names with a slash between, not {text!r}")
    return first, second


@dataclass(frozen=True, kw_only=True)
class Options(Scope):
    """What was typed, and what was answered."""

    name: Annotated[str | None, Argument(metavar="NAME", help="of the LLMService")] = None
    namespace: Annotated[
        str | None,
        Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="written into the manifests; default: none, kubectl's holds",
            group=CLUSTER,
        ),
    ] = None
    offline: Annotated[bool, Option("--offline", help="ask neither the cluster nor the hub", group=CLUSTER)] = False
    model: Annotated[
        str | None, Option("--model", metavar="URI", help="spec.model.uri, e.g. hf://ORG/NAME or ORG/NAME")
    ] = None
    gpu: Annotated[
        list[str] | None,
        Option(
            "--gpu",
            metavar="NAME[,NAME]",
            help="acceptable GPUs, the preferred first; default: the smallest of the cluster that fits",
            group=WHERE,
        ),
    ] = None
    cpu: Annotated[bool, Option("--cpu", help="on CPUs", group=WHERE)] = False
    max_model_len: Annotated[
        str | None,
        Option(
            "--max-model-len",
            metavar="TOKENS",
            help="longest request: 16000, 16K, auto; default: the model's own, or what fits",
            group=WHERE,
        ),
    ] = None
    quantization: Annotated[
        str | None,
        Option("--quantization", metavar="METHOD", help="of the weights: fp8, awq, gptq, ...", group=WHERE),
    ] = None
    replicas: Annotated[
        int | None, Option("--replicas", metavar="N", help="a fixed number of replicas", group=LOAD)
    ] = None
    min_replicas: Annotated[
        int | None,
        Option(
            "--min-replicas",
            metavar="N",
            help="replicas follow the load; 0: none without requests",
            group=LOAD,
        ),
    ] = None
    max_replicas: Annotated[
        int | None,
        Option(
            "--max-replicas",
            metavar="N",
            help="the most replicas; default: the fewest, but 1",
            group=LOAD,
        ),
    ] = None
    cache_size: Annotated[
        str | None,
        Option("--cache-size", metavar="SIZE", help="of a volume that keeps the model's files", group=LOAD),
    ] = None
    hf_token_secret: Annotated[
        Any,
        Option(
            "--hf-token-secret",
            parser=pair,
            metavar="SECRET/KEY",
            help="a Secret with a token of the hub",
            group=ACCESS,
        ),
    ] = None
    api_key_secret: Annotated[
        Any,
        Option(
            "--api-key-secret",
            parser=pair,
            metavar="SECRET/KEY",
            help="a Secret with the API keys of clients",
            group=ACCESS,
        ),
    ] = None
    activator: Annotated[
        Any,
        Option(
            "--activator",
            parser=pair,
            metavar="NAMESPACE/ACCOUNT",
            help="service account of the chart's activator",
            show_default=False,
            group=ACCESS,
        ),
    ] = ACTIVATOR
    output: Annotated[Literal["yaml", "json"], OUTPUT] = "yaml"
    out: Annotated[Path | None, Option("--out", metavar="FILE", help="default: standard output", group=ANSWER)] = None
    force: Annotated[
        bool,
        Option("--force", help="also where it does not fit, and over a file that is there", group=ANSWER),
    ] = False
    yes: Annotated[bool, Option("--yes", "-y", help="ask nothing", group=ANSWER)] = False
