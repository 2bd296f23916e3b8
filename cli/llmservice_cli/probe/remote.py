"""A probe inside the cluster: makes the pod, follows its log across interruptions of the API server, deletes it."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx
from kubeloop.errors import Forbidden, KubeError, Refused, ServerError, Unreachable
from kubeloop.resources import DEPLOYMENT, POD
from llmservice_api.constants import API_VERSION, KIND, LEADER_WORKER_SET
from llmservice_runtime.contract import RUNTIME_CONTAINER

from llmservice_cli.api import Api, Json, nodes_of
from llmservice_cli.cluster import Connection
from llmservice_cli.errors import CliError, say
from llmservice_cli.probe import Options
from llmservice_cli.probe.report import ProbedRequest
from llmservice_cli.services import endpoint_of, service
from llmservice_cli.text import stamp

from .report import Gathered

CONTAINER = "probe"
KEY_VARIABLE = "LLMSERVICE_API_KEY"
NAME_LABEL = {"app.kubernetes.io/name": "llmservice-probe"}
SPARE_SECONDS = 300.0
"""Of the pod beyond its load, to start and to end."""
STOP_SECONDS = 60  # what is under way when the probe is stopped may still end
START_SECONDS = 180.0
POLL_SECONDS = 0.5
# The API server sends what it has; a follow that is silent is no error.
LOG_TIMEOUT = httpx.Timeout(None, connect=5.0)

# The pod that sends the requests. Pure: LLMService, its workload and options in, manifest out.


def pod_of(service: Json, workload: Json | None, options: Options) -> Json:
    """A pod that `restricted` admits; it ends by itself some time after its load, and goes with its LLMService."""
    owner, endpoint = service["metadata"], endpoint_of(service)
    image, pull_secrets = (options.image, []) if options.image else image_of(workload, owner["name"])
    environment: list[Json] = [{"name": "HOME", "value": "/tmp"}]
    args = [*words_for_pod(options), "--url", url_of(service), "--model", model_of(service, options)]
    if endpoint.key is not None:
        environment.append({"name": KEY_VARIABLE, "valueFrom": {"secretKeyRef": dict(endpoint.key)}})
        args += ["--api-key-env", KEY_VARIABLE]
    seconds = options.duration + options.timeout * (options.retries + 1) + SPARE_SECONDS
    stem = re.sub(r"[^a-z0-9-]", "-", owner["name"])[:40].strip("-")  # a valid name whatever the service's is
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
            "name": f"llmservice-probe-{stem}-{secrets.token_hex(3)}",
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
            "imagePullSecrets": pull_secrets,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }


def words_for_pod(options: Options) -> Iterator[str]:
    """The same load as a command line, without where to."""
    rate = options.paced
    yield from ("probe", "--rows", "--quiet")
    yield from ("--concurrency", str(options.concurrency)) if rate is None else ("--rate", str(rate))
    yield from ("--duration", str(options.duration))
    yield from ("--timeout", str(options.timeout), "--retries", str(options.retries))
    for mode in options.modes:
        yield from ("--mode", str(mode))
    yield from ("--output-tokens", ",".join(map(str, options.output_tokens)))
    yield from (f"--prompt={options.prompt}", "--api", options.api)


def url_of(service: Json) -> str:
    """Inside the cluster."""
    metadata, port = service["metadata"], endpoint_of(service).port
    return f"http://{metadata['name']}.{metadata['namespace']}.svc" + (f":{port}" if port != 80 else "")


def model_of(service: Json, options: Options) -> str:
    """What is asked for."""
    names = (service.get("status", {}).get("endpoint") or {}).get("modelNames") or [service["metadata"]["name"]]
    return options.model or str(names[0])


def image_of(workload: Json | None, name: str) -> tuple[str, list[Json]]:
    """The operator's image, which has this program, as the service's own pods pull it, with their pull secrets."""
    spec = {} if workload is None else workload["spec"]
    template = spec.get("leaderWorkerTemplate", {}).get("workerTemplate", spec.get("template", {})).get("spec", {})
    for container in template.get("initContainers") or ():
        if container["name"] == RUNTIME_CONTAINER:
            return container["image"], list(template.get("imagePullSecrets") or ())
    raise CliError(
        f"{name} has no workload with the operator's image in it, which the probe runs from",
        f"wait until the service is accepted (llmservice status {name}), or name an image with --image",
    )


# What the API server says of the pod. Pure.


def _states(pod: Json) -> Sequence[Json]:
    """Of its container: none before the kubelet has seen it."""
    return [each.get("state", {}) for each in pod.get("status", {}).get("containerStatuses") or ()]


def has_ended(pod: Json | None) -> bool:
    """Whether nothing more will come of it."""
    return pod is None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def start_failure(pod: Json) -> str | None:
    """Why this pod does not start, where it will not by itself; None while it may."""
    for state in _states(pod):
        waiting = state.get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    return None


def unscheduled(pod: Json) -> str | None:
    """Why no node takes it, as the scheduler says it."""
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason')}: {condition.get('message', '')}"
    return None


@dataclass
class Remote:
    """One pod that probes; `follow` fills the gathered rows until it has ended."""

    connection: Connection
    pod: Json
    """As it was created."""
    target: str
    model: str
    way: str = "from inside the cluster"
    _has_ended: asyncio.Event = field(default_factory=asyncio.Event)
    _unread: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.pod["metadata"]["namespace"])

    async def follow(self, gathered: Gathered) -> None:
        """Until the probe says that it has ended, or its pod has."""
        await self._until_started()
        since: float | None = None
        while not self._has_ended.is_set():
            with suppress(httpx.HTTPError, Unreachable, ServerError):
                was_over = has_ended(await self._now())
                await self._read_log(gathered, since)
                if was_over:
                    break
            since = max((row.ended for row in gathered.rows.values()), default=None)
            if not self._has_ended.is_set():
                await asyncio.sleep(POLL_SECONDS)
        if not self._has_ended.is_set():
            output = " / ".join(self._unread[-3:])
            raise CliError(
                f"the pod {self.name} ended before the probe did" + (f": {output}" if output else ", without output"),
                "see its output; --image names another image of the operator"
                if output
                else "see the events of its node: was it drained, lost or out of memory?",
            )

    async def _now(self) -> Json | None:
        return await self.connection.kube.get(POD, self.namespace, self.name)

    async def _until_started(self) -> None:
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        why = "it has no state yet"
        while True:
            with suppress(Unreachable, ServerError):
                found = await self._now()
                if found is None:
                    raise CliError(f"the pod {self.name} was deleted", "start the probe again")
                if has_ended(found) or any(not state.get("waiting") for state in _states(found)):
                    return
                if reason := start_failure(found):
                    raise CliError(f"the probe's pod does not start: {reason}", "see the reason; --image names another")
                why = unscheduled(found) or why
            if asyncio.get_running_loop().time() > deadline:
                raise CliError(f"the probe's pod does not start: {why}", "make room for 50m CPU and 96Mi of memory")
            await asyncio.sleep(POLL_SECONDS)

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
                gathered.take(ProbedRequest.from_document(document))
        except (ValueError, KeyError, TypeError):
            if line not in self._unread:
                self._unread.append(line)
                gathered.write_line(f"{self.name}: {line}")

    async def stop(self) -> None:
        """Ask the pod to send nothing more; `follow` still gets the rows of requests in flight."""
        await self._delete(STOP_SECONDS)

    async def remove(self) -> None:
        """Tried for a while: an API server that restarts must not leave the pod behind."""
        for _ in range(20):
            try:
                await self._delete(0)
                return
            except (Unreachable, ServerError) as error:
                why = error.message
                await asyncio.sleep(POLL_SECONDS)
            except KubeError as error:
                why = error.message
                break
        # Printed and not raised: the report is still to come.
        remedy = f"kubectl delete pod {self.name} -n {self.namespace}"
        say(f"error: the probe's pod is left behind: {why}; {remedy}")

    async def _delete(self, grace: int) -> None:
        uid = self.pod["metadata"]["uid"]
        await self.connection.kube.delete(POD, self.namespace, self.name, uid=uid, grace=grace)


async def workload_of(kube: Api, service: Json) -> Json | None:
    """What runs the pods: that of the spec's number of nodes, or the other one, if they have not moved yet."""
    namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
    kinds = (LEADER_WORKER_SET, DEPLOYMENT)
    if nodes_of(service) == 1:
        kinds = kinds[::-1]
    found: Json | None = await kube.get(kinds[0], namespace, name)
    if found is None:
        with suppress(Forbidden):
            found = await kube.get(kinds[1], namespace, name)
    return found


@asynccontextmanager
async def in_cluster(connection: Connection, options: Options) -> AsyncIterator[Remote]:
    """The pod, gone afterwards whatever happens."""
    namespace, name = connection.namespace, options.name or ""
    found = await service(connection.kube, namespace, name)
    workload = None if options.image else await workload_of(connection.kube, found)
    making = asyncio.ensure_future(_create(connection, pod_of(found, workload, options)))

    async def made() -> Remote:
        return Remote(connection, await making, url_of(found), model_of(found, options))

    try:
        # Not cancelled half-way: the pod would go on sending, and nothing would delete it.
        await asyncio.shield(making)
        yield await made()
    finally:
        await (await made()).remove()


async def _create(connection: Connection, manifest: Json) -> Json:
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
