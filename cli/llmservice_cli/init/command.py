"""`llmservice init`: a manifest from a few options, admitted as an API server with this CRD would."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import yaml
from llmservice_operator.api.constants import API_VERSION, KIND, OPERATOR
from llmservice_operator.api.errors import InvalidSpec

from llmservice_cli.api import Json
from llmservice_cli.errors import BadInput, ExitCode, WrongUsage
from llmservice_cli.installation import NAMESPACE
from llmservice_cli.manifests import admit

ACTIVATOR = f"{NAMESPACE}/{OPERATOR}-activator"
DESCRIPTION = "Print the manifest of an LLMService to begin with. Nothing is read or written in a cluster."
EPILOG = f"""\
examples:
  llmservice init chat --model hf://Qwen/Qwen2.5-7B-Instruct > chat.yaml
  llmservice init chat --model hf://Qwen/Qwen2.5-7B-Instruct --min-replicas 0 --max-replicas 4
  llmservice init chat -n team --model hf://Qwen/Qwen2.5-7B-Instruct --min-replicas 0 --api-key-secret keys/api-key

With --min-replicas 0 and --api-key-secret it also prints a Role and a RoleBinding: the activator may then read that one
Secret, to check keys while no replica serves. --activator names its service account (default: {ACTIVATOR}).
"""
RBAC = "rbac.authorization.k8s.io"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="of the LLMService")
    parser.add_argument("-n", "--namespace", help="written into the manifests (default: none, so that kubectl's holds)")
    parser.add_argument("--model", required=True, metavar="URI", help="spec.model.uri, e.g. hf://ORG/NAME")
    parser.add_argument(
        "--min-replicas", type=int, metavar="N", help="replicas follow the load; 0: none without requests"
    )
    parser.add_argument("--max-replicas", type=int, metavar="N", help="the most replicas (default: the fewest, but 1)")
    parser.add_argument(
        "--api-key-secret", type=_pair, metavar="SECRET/KEY", help="a Secret with the API keys of clients"
    )
    parser.add_argument(
        "--activator",
        type=_pair,
        default=_pair(ACTIVATOR),
        metavar="NAMESPACE/ACCOUNT",
        help="service account of the chart's activator",
    )


def run(options: argparse.Namespace) -> ExitCode:
    """Print it; BadInput where the operator would refuse it."""
    made = llmservice(options)
    try:
        admit(made)
    except InvalidSpec as invalid:
        raise BadInput(invalid.problems) from None
    print(yaml.safe_dump_all([made, *roles(options)], sort_keys=False), end="")
    return ExitCode.DONE


def llmservice(options: argparse.Namespace) -> Json:
    """The LLMService of the options, with nothing that is a default."""
    spec: dict[str, object] = {"model": {"uri": options.model}}
    fewest, most = options.min_replicas, options.max_replicas
    if fewest is not None or most is not None:
        bounds = {} if fewest is None else {"minReplicas": fewest}
        spec["scaling"] = {"autoscaling": {**bounds, "maxReplicas": max(fewest or 0, 1) if most is None else most}}
    if options.api_key_secret:
        secret, key = options.api_key_secret
        spec["endpoint"] = {"apiKeySecretRef": {"name": secret, "key": key}}
    metadata = {"name": options.name, **_namespace(options)}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def roles(options: argparse.Namespace) -> Iterator[Json]:
    """What lets the activator read the keys, where it checks them."""
    if options.min_replicas != 0 or not options.api_key_secret:
        return
    if not options.namespace:
        raise WrongUsage("the Role for the activator belongs to a namespace", "give it with -n")
    name, (namespace, account) = f"{options.name}-activator", options.activator
    metadata = {"name": name, **_namespace(options)}
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [options.api_key_secret[0]], "verbs": ["get"]}
    yield {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]}
    yield {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": dict(metadata),
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }


def _namespace(options: argparse.Namespace) -> dict[str, str]:
    return {"namespace": options.namespace} if options.namespace else {}


def _pair(text: str) -> tuple[str, str]:
    """Two names with a slash between; ValueError where they are not."""
    first, slash, second = text.partition("/")
    if not (first and slash and second) or "/" in second:
        raise ValueError(text)
    return first, second


_pair.__name__ = "pair of names with a slash between"  # as argparse's message calls it
