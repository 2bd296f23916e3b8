"""The options of `llmservice render`, and what its help says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from click import BadParameter

from llmservice_cli.options import OUTPUT, Inputs, is_namespace
from llmservice_cli.parameters import Option
from llmservice_cli.text import count, shown

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
  llmservice render -f llmservice.yaml --for envoy-ai-gateway --gateway gateways/public
                                                                behind Envoy AI Gateway; with --clients-by X-Team
                                                                --tokens-per-minute 200000, with a limit of each client

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

MOST = 2**32 - 1
"""Of a limit (Envoy Gateway's CRD)."""
MODEL_HEADER = "x-ai-eg-model"
"""In which Envoy AI Gateway has the model of the request's body (api/v1beta1/shared_types.go)."""
_beside = partial(Option, group="what others need for the service, in place of what the operator makes")


def _limit(text: str) -> int:
    return count(text, MOST)


def _header(text: str) -> str:
    """One that the Gateway sets for each client: of keys each way to write one would have a limit of its own, and a
    store of limits is no place for secrets."""
    from llmservice_cli.report.redaction import is_secret_key

    if not re.fullmatch(r"[A-Za-z0-9-]{1,100}", text):
        raise BadParameter(f"must be the name of a header, not {shown(text)}")
    if text.lower() == MODEL_HEADER or is_secret_key(text.lower()):
        what = "the model of the request" if text.lower() == MODEL_HEADER else "a secret of the client's"
        raise BadParameter(f"{text} has {what}: name a header that the Gateway sets, such as X-Team")
    return text


def _reference(text: str) -> str:
    from llmservice_api.base import ObjectName

    namespace, slash, name = text.rpartition("/")
    if not _is_a(ObjectName, name) or (slash and not is_namespace(namespace)):
        raise BadParameter(f"must be [NAMESPACE/]NAME, not {shown(text)}")
    return text


def _image(text: str) -> str:
    from llmservice_api.base import ImageRef

    if not _is_a(ImageRef, text):
        raise BadParameter(f"must be an image such as registry.example.com/epp:v1.5.0, not {shown(text)}")
    return text


def _is_a(kind: Any, text: str) -> bool:
    """Whether a field of this type takes it."""
    from pydantic import TypeAdapter, ValidationError

    try:
        TypeAdapter(kind).validate_python(text)
    except ValidationError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class Options(Inputs):
    """What was typed."""

    namespace: Annotated[
        str | None,
        Option("--namespace", "-n", metavar="NAME", help="of services whose manifest names none; default: default"),
    ] = None
    component: Annotated[
        Literal["epp", "envoy-ai-gateway"] | None,
        _beside(
            "--for",
            help="what an endpoint picker (Gateway API inference extension 1.5) or Envoy AI Gateway (1.0) needs",
        ),
    ] = None
    image: Annotated[Any, _beside("--image", parser=_image, metavar="IMAGE", help="epp: the picker's")] = None
    gateway: Annotated[
        Any,
        _beside(
            "--gateway",
            parser=_reference,
            metavar="[NAMESPACE/]NAME",
            help="envoy-ai-gateway: through which requests come",
        ),
    ] = None
    requests_per_minute: Annotated[
        Any, _beside("--requests-per-minute", parser=_limit, metavar="N", help="envoy-ai-gateway: of each client")
    ] = None
    tokens_per_minute: Annotated[
        Any,
        _beside(
            "--tokens-per-minute",
            parser=_limit,
            metavar="N",
            help="envoy-ai-gateway: of each client, of prompts and answers together",
        ),
    ] = None
    clients_by: Annotated[
        Any,
        _beside(
            "--clients-by",
            parser=_header,
            metavar="HEADER",
            help="envoy-ai-gateway: the header by which the Gateway says who a client is",
        ),
    ] = None
    output: Annotated[Literal["table", "json", "yaml"], OUTPUT] = "yaml"
