"""Which containers of which pods are read, and what tells them apart. Pure: pods as the API server has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from llmservice_runtime.contract import FETCH_CONTAINER, SERVER_CONTAINER

from llmservice_cli.api import Json, container_statuses
from llmservice_cli.errors import CliError

from .lines import Origin

_ALWAYS = (SERVER_CONTAINER, FETCH_CONTAINER)


def short(pod: str) -> str:
    """The end of its name, which differs from pod to pod."""
    return pod.rpartition("-")[2]


def chosen(pods: Iterable[Json], wanted: str | None) -> list[Json]:
    """All, or the one that is meant, by name."""
    found = sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))
    if wanted is None:
        return found
    return [pod for pod in found if wanted in (pod["metadata"]["name"], short(pod["metadata"]["name"]))]


def containers(pod: Json, wanted: str | None) -> list[str]:
    """Names of those that are read: the one that is meant; else the server, the one that fetches and those that failed,
    as far as they have run."""
    return [
        status["name"]
        for status in container_statuses(pod)
        if (wanted == status["name"] if wanted else status["name"] in _ALWAYS or _has_failed(status))
    ]


def origins(pods: Sequence[Json], container: str | None, *, previous: bool) -> list[Origin]:
    """Every container that has a log, of the present run or of the one before. CliError where none of the pods has the
    container that was named."""
    names = sorted({each["name"] for pod in pods for each in _specified(pod)})
    if pods and container is not None and container not in names:
        raise CliError(f"no pod has a container {container!r}", f"choose one of: {', '.join(names)}")
    found = []
    for pod in pods:
        by_name = {status["name"]: status for status in container_statuses(pod)}
        for name in containers(pod, container):
            if run_of(by_name[name]) if not previous else by_name[name].get("restartCount"):
                found.append(Origin(pod["metadata"]["name"], name))
    return found


def run_of(status: Json) -> str:
    """Names the present or last run of a container; empty before the first."""
    return str(status.get("containerID") or "")


def _specified(pod: Json) -> Iterator[Json]:
    spec = pod.get("spec") or {}
    for kind in ("initContainers", "containers"):
        yield from spec.get(kind) or ()


def _has_failed(status: Json) -> bool:
    ends = [(status.get(key) or {}).get("terminated") or {} for key in ("state", "lastState")]
    return any(end.get("exitCode") for end in ends)
