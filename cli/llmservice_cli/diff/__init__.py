"""The options of `llmservice diff`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from llmservice_cli.options import OUTPUT, Inputs, Scope

DESCRIPTION = """\
What the operator would change in a cluster once the LLMServices of a file were applied: by the operator's own code,
from what the cluster has now. The first line says whether pods would restart, and why. Nothing is written.
"""
EPILOG = """\
examples:
  llmservice diff -f llmservice.yaml                       what an edit comes to, before `kubectl apply`
  llmservice diff -f llmservice.yaml -o table              a line for each object, without the diffs
  llmservice diff -f llmservice.yaml --context production
  helm template serving/ | llmservice diff -f - -o json | jq '.services[].restart.pods'

A diff shows the fields that the operator applies, and what it takes away. Values of environment variables that are
named like secrets are shown as ***. Rights: get and list on llmservices and their children (`view` has them). With the
right to list nodes and all pods the fit is the operator's; with the right to list ConfigMaps in all namespaces its
settings are read, too, and with that to list ClusterRoleBindings they are known to be an operator's.

exit codes, as of `kubectl diff`:
  0    no difference
  1    the operator would change something; or it would hold the edit, such as where it does not fit (fitPolicy Enforce)
  2    bad input, or the operator refuses the spec, or the cluster could not be asked; the message says why
"""


@dataclass(frozen=True, kw_only=True)
class Options(Inputs, Scope):
    """What was typed."""

    output: Annotated[Literal["diff", "json", "yaml", "table"], OUTPUT] = "diff"
