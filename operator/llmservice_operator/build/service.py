"""The Service: the stable address in front of the replicas."""

from typing import Any

from llmservice_runtime.contract import HTTP_PORT_NAME

from llmservice_operator.api.service import LLMService
from llmservice_operator.build import adapters
from llmservice_operator.build.meta import Manifest, metadata, selector


def service(llm: LLMService) -> Manifest:
    """A ClusterIP Service with the LLMService's name."""
    port = {
        "name": HTTP_PORT_NAME,
        "port": llm.spec.endpoint.port,
        "targetPort": HTTP_PORT_NAME,
        "protocol": "TCP",
        "appProtocol": "http",
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(llm),
        "spec": {"type": "ClusterIP", "selector": selector(llm), "ports": [port]},
    }


def _metadata(llm: LLMService) -> Manifest:
    meta = metadata(llm, llm.name)
    listed = adapters.digest(llm)
    return meta if listed is None else meta | {"annotations": {adapters.APPLIED_ADAPTERS: listed}}


def url(name: str, namespace: str, port: int) -> str:
    """Base URL of the OpenAI API inside the cluster."""
    suffix = "" if port == 80 else f":{port}"
    return f"http://{name}.{namespace}.svc{suffix}/v1"


def endpoint(llm: LLMService) -> dict[str, Any]:
    """The value of status.endpoint, without adapters."""
    return {"url": url(llm.name, llm.namespace, llm.spec.endpoint.port), "modelNames": list(llm.served_names)}
