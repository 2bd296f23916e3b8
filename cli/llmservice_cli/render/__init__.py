"""The options of `llmservice render`, and what its help says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from llmservice_cli.options import OUTPUT, Inputs
from llmservice_cli.parameters import Option

DESCRIPTION = """\
The objects that the operator would make of each LLMService of a file, as if it were new: by the operator's own code,
without a cluster. Nothing is read over the network, and nothing is written.
"""
EPILOG = """\
examples:
  llmservice render -f llmservice.yaml                          manifests, with conditions and notes as comments
  llmservice render -f llmservice.yaml --config config.json     as it is once the model was inspected
  llmservice render -f llmservice.yaml -o table                 a line for each object
  helm template serving/ | llmservice render -f - -o json | jq '.services[].conditions'
  llmservice render -f llmservice.yaml --for epp --image IMAGE | kubectl apply -f -
                                                                an endpoint picker for spec.routing.mode pool

Without spec.model.architecture or --config the operator inspects the model with a Job first; that Job is what is shown
then. Values of environment variables that are named like secrets are shown as ***. The output is for reading: the
operator applies these objects, and without their LLMService Kubernetes would delete them. Not so with --for: what that
renders is yours to apply, and the operator makes none of it.

exit codes:
  0  rendered
  1  the operator would start nothing until the spec is changed, such as where it does not fit
  2  bad input: a line on standard error for everything that is wrong, as with `plan`; or the operator refuses the spec
Of several LLMServices the worst counts: 2, then 1.
"""


@dataclass(frozen=True, kw_only=True)
class Options(Inputs):
    """What was typed."""

    namespace: Annotated[
        str | None,
        Option("--namespace", "-n", metavar="NAME", help="of services whose manifest names none; default: default"),
    ] = None
    component: Annotated[
        Literal["epp"] | None,
        Option("--for", help="instead: what an endpoint picker of the Gateway API's inference extension (1.5) needs"),
    ] = None
    image: Annotated[str | None, Option("--image", metavar="IMAGE", help="with --for: the picker's")] = None
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "yaml"
