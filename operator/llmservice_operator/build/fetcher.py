"""The container that fetches models and adapters: a native sidecar of the operator's image, beside the server.

Only it has the credentials and write access to the models; the server sends it requests over a socket. It runs as long
as the server, because adapters may be added at any time.
"""

from __future__ import annotations

from llmservice_runtime import contract

from llmservice_operator.api.service import LLMService
from llmservice_operator.build.engine import adapters_file
from llmservice_operator.build.environment import transfer_environment
from llmservice_operator.build.meta import Manifest
from llmservice_operator.build.pvc import fetch_options
from llmservice_operator.build.resources import fetch_resources
from llmservice_operator.build.security import operator_container
from llmservice_operator.build.settings import Settings
from llmservice_operator.build.sources import fetched, needs_models_volume
from llmservice_operator.build.volumes import fetch_volumes


def fetch_containers(llm: LLMService, settings: Settings) -> list[Manifest]:
    """One, or none where nothing may be fetched."""
    if not needs_models_volume(llm.spec):
        return []
    file = adapters_file(llm.spec)
    # Any of them may hold certificates or tokens, put there by an init container or a driver.
    users_mounts = [{**mount, "readOnly": True} for mount in llm.spec.pod_template.spec.volume_mounts]
    container = operator_container(
        settings,
        contract.FETCH_CONTAINER,
        contract.FETCH_COMMAND,
        args=[
            *(f"--fetch={name}={uri}" for name, uri in fetched(llm.spec).items()),
            *([] if file is None else [f"--adapters-file={file}"]),
            *fetch_options(llm),
        ],
        env=transfer_environment(llm, settings),
        restartPolicy="Always",
        resources=fetch_resources(settings),
        volumeMounts=[m.mount() for m in fetch_volumes(llm, settings)] + users_mounts,
    )
    return [container]
