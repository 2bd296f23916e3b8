"""The container that fetches models and adapters: a native sidecar of the operator's image, beside the server.

It alone has the credentials and may write the models; the server asks it over a socket. It runs as long as the server
does, since adapters come and go.
"""

from __future__ import annotations

from llmservice_runtime import contract

from llmservice_operator.api.service import LLMService
from llmservice_operator.build.engine import adapters_file
from llmservice_operator.build.environment import for_fetching
from llmservice_operator.build.meta import Manifest
from llmservice_operator.build.pvc import fetch_options
from llmservice_operator.build.resources import fetch_resources
from llmservice_operator.build.security import CONTAINER_SECURITY
from llmservice_operator.build.settings import Settings
from llmservice_operator.build.sources import fetched, needs_models_volume
from llmservice_operator.build.volumes import fetch_volumes


def fetch_containers(llm: LLMService, settings: Settings) -> list[Manifest]:
    """One, or none where nothing may be fetched."""
    if not needs_models_volume(llm.spec):
        return []
    file = adapters_file(llm.spec)
    # Certificates and tokens may lie in any of them, where an init container or a driver put them.
    guests = [{**mount, "readOnly": True} for mount in llm.spec.pod_template.spec.volume_mounts]
    container: Manifest = {
        "name": contract.FETCH_CONTAINER,
        "image": settings.operator_image,
        "command": list(contract.FETCH_COMMAND),
        "args": [
            *(f"--fetch={name}={uri}" for name, uri in fetched(llm.spec).items()),
            *([] if file is None else [f"--adapters-file={file}"]),
            *fetch_options(llm),
        ],
        "env": for_fetching(llm, settings),
        "restartPolicy": "Always",
        "resources": fetch_resources(settings),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [m.mount() for m in fetch_volumes(llm, settings)] + guests,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if settings.image_pull_policy is not None:
        container["imagePullPolicy"] = settings.image_pull_policy
    return [container]
