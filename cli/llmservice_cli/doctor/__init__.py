"""The options of `llmservice doctor`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from llmservice_cli.options import ANSWER, OUTPUT, Scope
from llmservice_cli.parameters import Option

DESCRIPTION = """\
Check a cluster before and after the operator is installed: versions, rights, the operator, nodes and GPUs, storage, the
namespace's limits, images, broken services, endpoint pickers and the DNS of routers. Nothing is changed. What you may
not read is reported as not known, with the right that is missing.
"""
EPILOG = """\
examples:
  llmservice doctor                            the cluster, the operator, and the context's namespace
  llmservice doctor --before-install           what installing needs; the default where no operator is found
  llmservice doctor -n team-a --strict         warnings are problems, too: for a pipeline
  llmservice doctor -o json | jq '.findings[] | select(.level == "problem")'

rights: none is necessary. For every check: get on the CRDs and namespaces, list on nodes, storageclasses,
deviceclasses, webhook configurations and, in all namespaces, on deployments, pods, configmaps and llmservices; get on
the operator's Lease; with pools get on services and configmaps of the namespace,
with routers on the configmaps coredns and node-local-dns of kube-system

exit codes:
  0    nothing is wrong; there may be warnings, and checks that are not known
  1    there is a problem; with --strict a warning is one
  2    the cluster could not be asked (kubeconfig, address, credentials)
"""


@dataclass(frozen=True, kw_only=True)
class Options(Scope):
    """What was typed."""

    before_install: Annotated[
        bool,
        Option("--before-install", help="skip what only an installed operator has; default: where none is found"),
    ] = False
    strict: Annotated[bool, Option("--strict", help="exit with 1 for warnings, too", group=ANSWER)] = False
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "table"
