"""A probe inside the cluster: makes the pod, follows its log across interruptions of the API server, deletes it."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from kubeloop.errors import KubeError, Refused, ServerError, Unreachable
from kubeloop.resources import DEPLOYMENT, POD
from llmservice_api.constants import API_VERSION, KIND
from llmservice_runtime.contract import RUNTIME_CONTAINER

from llmservice_cli.api import Json
from llmservice_cli.cluster import Connection
from llmservice_cli.errors import CliError, say
from llmservice_cli.services import endpoint_of, service
from llmservice_cli.text import stamp

from .report import Gathered
from .row import Row

# The pod that sends the requests of `llmservice probe NAME`. Pure: LLMService and Deployment in, manifest out.

CONTAINER = "probe"
KEY_VARIABLE = "LLMSERVICE_API_KEY"
NAME_LABEL = {"app.kubernetes.io/name": "llmservice-probe"}
STOP_SECONDS = 60  # what is under way when the probe is stopped may still end


def target_of(service: Json) -> tuple[str, str]:
    """The URL inside the cluster, and the model's name, of an LLMService."""
    metadata, port = service["metadata"], endpoint_of(service).port
    names = (service.get("status", {}).get("endpoint") or {}).get("modelNames") or [metadata["name"]]
    return f"http://{metadata['name']}.{metadata['namespace']}.svc" + (f":{port}" if port != 80 else ""), names[0]


def image_of(deployment: Json | None, name: str) -> tuple[str, list[Json]]:
    """The operator's image, which has this program, as the service's own pods pull it, with their pull secrets."""
    template = {} if deployment is None else deployment["spec"]["template"]["spec"]
    for container in template.get("initContainers") or ():
        if container["name"] == RUNTIME_CONTAINER:
            return container["image"], list(template.get("imagePullSecrets") or ())
    raise CliError(
        f"{name} has no Deployment with the operator's image in it, which the probe runs from",
        f"wait until the service is accepted (llmservice status {name}), or name an image with --image",
    )


def pod_manifest(
    service: Json, *, name: str, image: str, pull_secrets: Sequence[Json], key: Json | None, args: Sequence[str],
    seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """A pod that `restricted` admits; it ends by itself after `seconds`, and goes with its LLMService."""
    owner = service["metadata"]
    environment: list[dict[str, Any]] = [{"name": "HOME", "value": "/tmp"}]
    if key is not None:
        environment.append({"name": KEY_VARIABLE, "valueFrom": {"secretKeyRef": dict(key)}})
    container = {
        "name": CONTAINER,
        "image": image,
        "command": ["python", "-m", "llmservice_cli", *args],
        "env": environment,
        # Its work is small, but late is wrong: no limit of CPU, which would hold it back.
        "resources": {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": owner["namespace"],
            "labels": {**NAME_LABEL, "app.kubernetes.io/instance": owner["name"]},
            "ownerReferences": [{"apiVersion": API_VERSION, "kind": KIND, "name": owner["name"], "uid": owner["uid"]}],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": int(seconds),
            "terminationGracePeriodSeconds": STOP_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "imagePullSecrets": [dict(secret) for secret in pull_secrets],
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }


def start_failure(pod: Json) -> str | None:
    """Why this pod does not start, where it will not by itself; None while it may."""
    status = pod.get("status", {})
    for container in status.get("containerStatuses") or ():
        waiting = container.get("state", {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    return None


def unscheduled(pod: Json) -> str | None:
    """Why no node takes it, as the scheduler says it."""
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason')}: {condition.get('message', '')}"
    return None


def has_started(pod: Json) -> bool:
    """Whether its container runs, or has run."""
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return any(not status.get("state", {}).get("waiting") for status in statuses)


def has_ended(pod: Json) -> bool:
    """Whether nothing more will come of it."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


START_SECONDS = 180.0
POLL_SECONDS = 0.5
# The API server sends what it has; a follow that is silent is no error.
LOG_TIMEOUT = httpx.Timeout(None, connect=5.0)


@dataclass(frozen=True)
class Wanted:
    """Arguments, image, model and deadline of the pod."""

    args: Sequence[str]
    image: str | None
    model: str | None
    seconds: float  # after which the pod ends by itself


@dataclass
class Remote:
    """One pod that probes; `follow` fills the gathered rows until it has ended."""

    connection: Connection
    namespace: str
    name: str
    uid: str
    target: str
    model: str
    way: str = "from inside the cluster"
    _has_ended: asyncio.Event = field(default_factory=asyncio.Event)
    _unread: list[str] = field(default_factory=list)

    async def follow(self, gathered: Gathered) -> None:
        """Until the probe says that it has ended, or its pod has."""
        await self._until_started()
        since: float | None = None
        while not self._has_ended.is_set():
            with suppress(httpx.HTTPError, Unreachable, ServerError):
                has_stopped = await self._has_stopped()
                await self._read_log(gathered, since)
                if has_stopped:
                    break
            since = max((row.ended for row in gathered.rows.values()), default=None)
            if not self._has_ended.is_set():
                await asyncio.sleep(POLL_SECONDS)
        if not self._has_ended.is_set():
            raise self._broken()

    def _broken(self) -> CliError:
        early = f"the pod {self.name} ended before the probe did"
        if self._unread:
            remedy = "see its output; --image names another image of the operator"
            return CliError(f"{early}: {' / '.join(self._unread[-3:])}", remedy)
        return CliError(
            f"{early}, without output", "see the events of its node: was it drained, lost or out of memory?"
        )

    async def _until_started(self) -> None:
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        why = "it has no state yet"
        while True:
            with suppress(Unreachable, ServerError):
                found = await self.connection.kube.get(POD, self.namespace, self.name)
                if found is None:
                    raise CliError(f"the pod {self.name} was deleted", "start the probe again")
                if has_started(found) or has_ended(found):
                    return
                if reason := start_failure(found):
                    raise CliError(f"the probe's pod does not start: {reason}", "see the reason; --image names another")
                why = unscheduled(found) or why
            if asyncio.get_running_loop().time() > deadline:
                raise CliError(f"the probe's pod does not start: {why}", "make room for 50m CPU and 96Mi of memory")
            await asyncio.sleep(POLL_SECONDS)

    async def _has_stopped(self) -> bool:
        found = await self.connection.kube.get(POD, self.namespace, self.name)
        return found is None or has_ended(found)

    async def _read_log(self, gathered: Gathered, since: float | None) -> None:
        path = f"{POD.path(self.namespace, self.name)}/log"
        params = {"container": CONTAINER, "follow": "true"}
        if since is not None:
            params["sinceTime"] = stamp(since - 5)
        async with (
            self.connection.http(timeout=LOG_TIMEOUT) as http,
            http.stream("GET", path, params=params) as response,
        ):
            if response.is_error:
                await response.aread()
                return
            async for line in response.aiter_lines():
                self._take(line, gathered)

    def _take(self, line: str, gathered: Gathered) -> None:
        try:
            document = json.loads(line)
            if "begin" in document:
                if not gathered.rows:  # the log is read again from there after an interruption
                    gathered.begin(document["begin"])
            elif "end" in document:
                gathered.end()
                self._has_ended.set()
            else:
                gathered.take(Row.from_document(document))
        except (ValueError, KeyError, TypeError):
            if line not in self._unread:
                self._unread.append(line)
                gathered.write_line(f"{self.name}: {line}")

    async def stop(self) -> None:
        """Ask the pod to send nothing more; `follow` still gets the rows of requests in flight."""
        await self._delete(STOP_SECONDS)

    async def remove(self) -> None:
        await self._delete(0)

    async def _delete(self, grace: int) -> None:
        await self.connection.kube.delete(POD, self.namespace, self.name, uid=self.uid, grace=grace)


@asynccontextmanager
async def in_cluster(connection: Connection, name: str, wanted: Wanted) -> AsyncIterator[Remote]:
    """The pod, gone afterwards whatever happens."""
    found = await service(connection.kube, connection.namespace, name)
    (url, own_model), key = target_of(found), endpoint_of(found).key
    secret_names: Sequence[Any] = ()
    image = wanted.image
    if image is None:
        deployment = await connection.kube.get(DEPLOYMENT, connection.namespace, name)
        image, secret_names = image_of(deployment, name)
    model = wanted.model or own_model
    args = [*wanted.args, "--url", url, "--model", model]
    if key is not None:
        args += ["--api-key-env", KEY_VARIABLE]
    manifest = pod_manifest(
        found, name=pod_name(name), image=image, pull_secrets=secret_names, key=key, args=args, seconds=wanted.seconds
    )
    making = asyncio.ensure_future(_create(connection, manifest))
    try:
        # Not cancelled half-way: the pod would go on sending, and nothing would delete it.
        await asyncio.shield(making)
        yield _remote(connection, await making, url, model)
    finally:
        await _removed(_remote(connection, await making, url, model))


def _remote(connection: Connection, made: dict[str, Any], url: str, model: str) -> Remote:
    metadata = made["metadata"]
    return Remote(connection, metadata["namespace"], metadata["name"], metadata["uid"], url, model)


async def _create(connection: Connection, manifest: dict[str, Any]) -> dict[str, Any]:
    try:
        return await connection.kube.create(POD, manifest)
    except (Unreachable, ServerError) as error:
        # It may have been created all the same, and would send until its deadline.
        name = manifest["metadata"]["name"]
        raise CliError(
            f"it is unknown whether the probe's pod {name} was created: {error.message}",
            f"try again; if it exists: kubectl delete pod {name} -n {connection.namespace}",
        ) from error
    except Refused as error:
        raise CliError(
            f"the namespace does not admit the probe's pod: {error.message}",
            "make room in the quota, or run the probe from a pod of your own: llmservice probe --url",
        ) from error


async def _removed(remote: Remote) -> None:
    """Tried for a while: an API server that restarts must not leave the pod behind."""
    for _ in range(20):
        try:
            await remote.remove()
            return
        except (Unreachable, ServerError) as error:
            why = error.message
            await asyncio.sleep(POLL_SECONDS)
        except KubeError as error:
            why = error.message
            break
    # Printed and not raised: the report is still to come.
    remedy = f"kubectl delete pod {remote.name} -n {remote.namespace}"
    say(f"error: the probe's pod is left behind: {why}; {remedy}")


def pod_name(service_name: str) -> str:
    """Of this probe only, and a valid name whatever the service's is."""
    stem = re.sub(r"[^a-z0-9-]", "-", service_name)[:40].strip("-")
    return f"llmservice-probe-{stem}-{secrets.token_hex(3)}"
