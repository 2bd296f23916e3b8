"""`llmservice init`: a manifest from a few options, admitted as an API server with this CRD would."""

from __future__ import annotations

from collections.abc import Iterator

import yaml
from llmservice_operator.api.constants import API_VERSION, KIND
from llmservice_operator.api.errors import InvalidSpec

from llmservice_cli.api import Json
from llmservice_cli.errors import BadInput, ExitCode, WrongUsage
from llmservice_cli.manifests import admit

from .arguments import Options

RBAC = "rbac.authorization.k8s.io"


def run(options: Options) -> ExitCode:
    """Print it; BadInput where the operator would refuse it."""
    made = llmservice(options)
    try:
        admit(made)
    except InvalidSpec as invalid:
        raise BadInput(invalid.problems) from None
    print(yaml.safe_dump_all([made, *roles(options)], sort_keys=False), end="")
    return ExitCode.DONE


def llmservice(options: Options) -> Json:
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


def roles(options: Options) -> Iterator[Json]:
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


def _namespace(options: Options) -> dict[str, str]:
    return {"namespace": options.namespace} if options.namespace else {}
