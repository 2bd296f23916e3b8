"""The services and their pods, as small frozen values; the watches that keep them current, and whether they are."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kubeloop import log
from kubeloop.errors import KubeError
from kubeloop.informer import Informer
from kubeloop.resources import POD, Key, Resource
from kubeloop.transport import Transport
from llmservice_api.conditions import ConditionType
from llmservice_api.constants import LLMSERVICE, RANK_LABEL, SERVICE_LABEL, has_api, is_replica
from llmservice_api.errors import InvalidSpec
from llmservice_api.holding import holds
from llmservice_api.lifecycle import MOST_CONCURRENCY, MOST_REPLICAS, Autoscaling, Scaling
from llmservice_runtime.contract import SERVER_CONTAINER, START_CEILING_SECONDS
from pydantic import ValidationError

from llmservice_activator import demand
from llmservice_activator.holding_config import HoldingConfig, holding_config_of, unreadable_config

logger = logging.getLogger(__name__)

Json = Mapping[str, Any]

MANY_RESTARTS = 3
"""Restarts after which a pod that is not ready counts as failing and not as starting."""
_STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Waiting reasons of a container before its first start; all others are failures."""


@dataclass(frozen=True, slots=True)
class Service:
    """An LLMService that is autoscaled, or whose requests are held."""

    key: Key
    uid: str
    generation: int
    resource_version: str
    replicas: int
    existing: int
    concurrency: int | None
    autoscaling_or_none: Autoscaling | None
    """None: others set its replicas."""
    holding: HoldingConfig | None = None
    """How its requests are held while no replica answers."""
    is_direct: bool = False
    """The operator reports that its Service leads to replicas and not to activators."""

    @property
    def autoscaling(self) -> Autoscaling:
        """Its autoscaling; Unknown if it has none."""
        if self.autoscaling_or_none is None:
            raise Unknown(f"LLMService {self.key} has no spec.scaling.autoscaling; set it, or delete this ScaledObject")
        return self.autoscaling_or_none

    @property
    def may_be_at_zero(self) -> bool:
        """Whether a held request may start a replica."""
        return self.autoscaling_or_none is not None and self.autoscaling_or_none.may_be_at_zero


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that serves or may serve later."""

    service: Key
    name: str
    address: str
    """Empty until it is assigned, and while the server container does not run."""
    is_ready: bool
    is_starting: bool
    """It is scheduled, was not ready since its server container last started, and is not crash-looping."""
    started_at: datetime.datetime | None = None
    """When it was scheduled or its server container last started, whichever is later; None: unknown."""
    is_first: bool = True
    """Of the pods of its replica that answer requests, which are ready together."""


class Unknown(Exception):
    """No answer about a service is possible; the message has the remedy."""


class NotHandled(Unknown):
    """The service is neither autoscaled nor held. One that was held keeps answering until nodes know its new
    endpoints."""


class InvalidService(Unknown):
    """The spec is not valid. Held and new requests are refused with the field in the message."""

    def __init__(self, message: str, *, is_about_clients: bool = False) -> None:
        """`is_about_clients`: spec.scaling.holding.from is not valid, so nobody can be admitted."""
        super().__init__(message)
        self.is_about_clients = is_about_clients


Changed = Callable[[Service, Service], None]
"""Called with a service before and after a change of its replicas."""


class Services:
    """Autoscaled or held services and their pods, from the watches.

    Methods do not raise, unless documented.
    """

    def __init__(
        self,
        *,
        changed: Changed = lambda before, after: None,
        gone: Callable[[Key], None] = lambda key: None,
        touched: Callable[[Key], None] = lambda key: None,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._changed, self._gone, self._now = changed, gone, now
        self._touched = touched
        """Called after each event of a service or one of its pods."""
        self._services: dict[Key, Service] = {}
        self._refused: dict[Key, str] = {}
        """Services that exist and cannot be answered for, with the reason."""
        self._pods: dict[Key, dict[str, Pod]] = {}
        self._pod_services: dict[tuple[str, str], Key] = {}

    def get(self, key: Key) -> Service:
        """The autoscaled service; Unknown if there is none, or it is not valid."""
        found = self._services.get(key)
        if found is None or key in self._refused:
            raise Unknown(
                self._refused.get(key) or f"there is no LLMService {key} that can be read; delete this ScaledObject"
            )
        _ = found.autoscaling
        return found

    def find(self, key: Key) -> Service | None:
        """The autoscaled or held service, or None. One with an invalid spec refuses its requests."""
        return self._services.get(key)

    def pods(self, key: Key) -> tuple[Pod, ...]:
        """Pods that are not deleted and have not ended. A pod that starts for too long does not count as starting."""
        now = self._now()
        return tuple(
            replace(pod, is_starting=False) if pod.is_starting and _is_late(pod, now) else pod
            for pod in self._pods.get(key, {}).values()
        )

    def __iter__(self) -> Iterator[Key]:
        return iter(tuple(self._services))

    def __len__(self) -> int:
        return len(self._services)

    def updated(self, resource: Resource, obj: dict[str, Any]) -> None:
        """An object was added or changed. Unreadable objects are skipped, so that they do not end the watch."""
        metadata = obj["metadata"]
        where, name = metadata["namespace"], metadata["name"]
        try:
            if resource is POD:
                self._update_pod(obj)
            else:
                self._update_service(obj)
        except Exception:
            logger.exception("%s %s/%s cannot be read", resource.kind, where, name)
            self._remove(resource, where, name)

    def deleted(self, resource: Resource, obj: dict[str, Any]) -> None:
        metadata = obj["metadata"]
        self._remove(resource, metadata["namespace"], metadata["name"])

    def listed(
        self, resource: Resource, namespace: str | None, uids: Mapping[tuple[str, str], str], version: str
    ) -> None:
        known: Iterable[tuple[str, str]] = self._pod_services if resource is POD else (*self._services, *self._refused)
        for where, name in tuple(known):
            if namespace in (None, where) and (where, name) not in uids:
                self._remove(resource, where, name)

    def _remove(self, resource: Resource, namespace: str, name: str) -> None:
        if resource is POD:
            self._remove_pod(namespace, name)
        else:
            self._remove_service(Key(namespace, name))

    def _update_service(self, obj: Json) -> None:
        metadata = obj["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        try:
            found = service_of(obj, self._now())
        except Unknown as error:
            if self._refused.get(key) != str(error):
                logger.info("%s", error, extra={log.KEY: key})
            before = self._services.get(key)
            kept = _ended(obj, before) if isinstance(error, NotHandled) else _unread(obj, before, error)
            if kept is None:
                self._remove_service(key)
            else:
                self._services[key] = kept
                self._touched(key)
                if before is not None and before.autoscaling_or_none is not None and isinstance(error, NotHandled):
                    self._gone(key)
            self._refused[key] = str(error)
            return
        before = self._services.get(key)
        self._refused.pop(key, None)
        self._services[key] = found
        self._touched(key)
        if before is not None and before.autoscaling_or_none is not None and found.autoscaling_or_none is None:
            self._gone(key)
        elif (
            before is not None
            and found.autoscaling_or_none
            and before.uid == found.uid
            and before.replicas != found.replicas
        ):
            self._changed(before, found)

    def _remove_service(self, key: Key) -> None:
        self._refused.pop(key, None)
        if self._services.pop(key, None) is not None:
            self._gone(key)
            self._touched(key)

    def _update_pod(self, obj: Json) -> None:
        metadata = obj["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        self._remove_pod(namespace, name)
        found = pod_of(obj)
        if found is not None:
            self._pod_services[namespace, name] = found.service
            self._pods.setdefault(found.service, {})[name] = found
            self._touched(found.service)

    def _remove_pod(self, namespace: str, name: str) -> None:
        service = self._pod_services.pop((namespace, name), None)
        if service is None:
            return
        pods = self._pods[service]
        del pods[name]
        if not pods:
            del self._pods[service]
        self._touched(service)


def _unread(obj: Json, before: Service | None, why: Unknown) -> Service | None:
    """An LLMService that cannot be read but whose requests arrive here; None for all others."""
    metadata = obj["metadata"]
    key, uid = Key(metadata["namespace"], metadata["name"]), str(metadata.get("uid", ""))
    last = before if before is not None and before.uid == uid else None
    if not isinstance(why, InvalidService):
        return None
    holding = unreadable_config(obj, last.holding if last is not None else None, str(why), is_shut=why.is_about_clients)
    if holding is None:
        return None
    generation, version = int(metadata.get("generation", 0)), str(metadata.get("resourceVersion", ""))
    replicas = last.replicas if last is not None else 0
    return Service(
        key, uid, generation, version, replicas, existing=0, concurrency=None, autoscaling_or_none=None, holding=holding
    )


def _ended(obj: Json, before: Service | None) -> Service | None:
    """A service that is not autoscaled or held any more, with its current replicas; None if it never was."""
    if before is None or before.uid != obj["metadata"].get("uid"):
        return None
    replicas = _integer(obj["spec"]["scaling"].get("replicas", 1), 0, MOST_REPLICAS) or 0
    return replace(before, replicas=replicas, autoscaling_or_none=None, holding=None)


def service_of(obj: Json, now: datetime.datetime) -> Service:
    """From an LLMService object. NotHandled where it is neither autoscaled nor held, InvalidService where it is not
    valid."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    key = Key(metadata["namespace"], metadata["name"])
    if "deletionTimestamp" in metadata:
        raise Unknown(f"LLMService {key} is being deleted")
    try:
        scaling = Scaling.model_validate(spec.get("scaling") or {}, by_alias=True, by_name=False)
    except ValidationError as error:
        field = ".".join(str(part) for part in error.errors(include_url=False)[0]["loc"])
        message = f"spec.scaling.{field} of LLMService {key} is not valid; correct it"
        raise InvalidService(message, is_about_clients=field.startswith("holding")) from None
    if scaling.autoscaling is None and not holds(scaling, status):
        raise NotHandled(f"LLMService {key} has no spec.scaling.autoscaling; set it, or delete this ScaledObject")
    try:
        if scaling.autoscaling is not None:
            demand.check_schedule(scaling.autoscaling, now)
    except demand.InvalidSchedule as error:
        raise InvalidService(f"spec.scaling.autoscaling.schedule of LLMService {key}: {error}; correct it") from None
    try:
        holding = holding_config_of(obj, scaling) if holds(scaling, status) else None
    except InvalidSpec as error:
        raise InvalidService(f"LLMService {key}: {error}", is_about_clients=True) from None
    except ValueError:
        raise InvalidService(
            f"spec.endpoint or spec.scaling.holding of LLMService {key} is not valid; correct it"
        ) from None
    return Service(
        key=key,
        uid=str(metadata.get("uid", "")),
        generation=int(metadata.get("generation", 0)),
        resource_version=str(metadata.get("resourceVersion", "")),
        replicas=scaling.replicas,
        existing=_integer(status.get("replicas"), 0, 2 * MOST_REPLICAS) or 0,
        concurrency=_integer(_effective(status).get("concurrencyPerReplica"), 1, MOST_CONCURRENCY),
        autoscaling_or_none=scaling.autoscaling,
        holding=holding,
        is_direct=bool(scaling.replicas) and _leads_to_replicas(status),
    )


def _leads_to_replicas(status: Json) -> bool:
    """Whether a replica is available, and no rollout is about to end the last one. The operator reports that before its
    EndpointSlices lead to the activators."""
    rollout = status.get("rollout")
    is_available = any(
        condition.get("type") == ConditionType.AVAILABLE and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )
    return is_available and not (isinstance(rollout, Mapping) and rollout.get("gap"))


def pod_of(obj: Json) -> Pod | None:
    """From a Pod object; None where it will not serve any more, or answers no requests of a service."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels = metadata.get("labels") or {}
    service = labels.get(SERVICE_LABEL)
    phase = status.get("phase")
    if not service or "deletionTimestamp" in metadata or phase in ("Succeeded", "Failed"):
        return None
    if not is_replica(metadata, service) or not has_api(labels):
        return None
    server: Json = next((c for c in status.get("containerStatuses") or () if c.get("name") == SERVER_CONTAINER), {})
    conditions: dict[object, Json] = {c.get("type"): c for c in status.get("conditions") or ()}
    ready, scheduled = conditions.get("Ready") or {}, conditions.get("PodScheduled") or {}
    is_ready = ready.get("status") == "True"
    running = (server.get("state") or {}).get("running")
    is_running = phase == "Running" and running is not None
    times = [_time(metadata.get("creationTimestamp")), _time(scheduled.get("lastTransitionTime"))]
    started_at = _time((running or {}).get("startedAt"))
    return Pod(
        service=Key(metadata["namespace"], service),
        name=metadata["name"],
        address=_address(status.get("podIP")) if is_running else "",
        is_ready=is_ready,
        is_starting=bool(spec.get("nodeName"))
        and not is_ready
        and not (server.get("started") and _was_ready(ready, started_at))
        and not _is_failing(status),
        started_at=max((time for time in (*times, started_at) if time is not None), default=None),
        is_first=labels.get(RANK_LABEL, "0") == "0",
    )


def _was_ready(ready: Json, started_at: datetime.datetime | None) -> bool:
    """Whether an unready server was ready since its last start: a pod is also "not ready" from its creation on."""
    changed_at = _time(ready.get("lastTransitionTime"))
    return started_at is None or changed_at is None or changed_at > started_at


def _is_failing(status: Json) -> bool:
    """Whether a container waits for something that needs a change, or fails repeatedly."""
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    waits = (((c.get("state") or {}).get("waiting") or {}).get("reason") or "" for c in containers)
    restarts = (_integer(c.get("restartCount"), 0, 2**31) or 0 for c in containers)
    return any(reason not in _STARTING for reason in waits) or any(count >= MANY_RESTARTS for count in restarts)


def _is_late(pod: Pod, now: datetime.datetime) -> bool:
    """Whether it starts for longer than the kubelet allows a running server; nothing ends a pod whose containers are
    never created."""
    return pod.started_at is not None and abs((now - pod.started_at).total_seconds()) >= START_CEILING_SECONDS


def _effective(status: Json) -> Json:
    effective = status.get("effective")
    scaling = effective.get("scaling") if isinstance(effective, Mapping) else None
    return scaling if isinstance(scaling, Mapping) else {}


def _integer(value: object, lowest: int, highest: int) -> int | None:
    """The value if it is an integer within the bounds; else None."""
    return value if type(value) is int and lowest <= value <= highest else None


def _time(value: object) -> datetime.datetime | None:
    try:
        found = datetime.datetime.fromisoformat(str(value)[:64])
    except ValueError:
        return None
    return None if found.tzinfo is None else found


def _address(value: object) -> str:
    try:
        return str(ipaddress.ip_address(str(value)[:64]))
    except ValueError:
        return ""


OUTDATED_AFTER = 60.0
"""Seconds of a failing watch after which its data is not used."""


class Watches:
    """The informers of both kinds, for each namespace or for all, and their state."""

    def __init__(
        self,
        transport: Transport,
        namespaces: tuple[str, ...],
        services: Services,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._failing_since: dict[tuple[str | None, Resource], float] = {}
        scopes: tuple[str | None, ...] = namespaces or (None,)
        self._problems: dict[tuple[str | None, Resource], str | None] = {
            (scope, resource): "not listed yet" for scope in scopes for resource in (LLMSERVICE, POD)
        }
        """By part; None: listed and watched."""
        self._seen: set[tuple[str | None, Resource]] = set()
        selectors = {LLMSERVICE: "", POD: SERVICE_LABEL}
        self._informers = [
            (
                resource,
                Informer(
                    transport,
                    resource,
                    scope,
                    selectors[resource],
                    services,
                    report=lambda error, part=(scope, resource): self._report(part, error),  # type: ignore[misc]
                ),
            )
            for scope, resource in self._problems
        ]

    async def run(self) -> None:
        """Watch; never returns."""
        async with asyncio.TaskGroup() as group:
            for resource, informer in self._informers:
                group.create_task(informer.run(), name=f"watch of {resource.plural}")

    def is_synced(self, namespace: str) -> bool:
        """Whether data about a namespace is current enough to remove replicas.

        A watch that fails briefly is resumed without loss. While it fails for longer, pods may have come whose requests
        are not counted.
        """
        return all(self._is_current((self._scope(namespace), resource)) for resource in (LLMSERVICE, POD))

    def _scope(self, namespace: str) -> str | None:
        return namespace if (namespace, LLMSERVICE) in self._problems else None

    def _is_current(self, part: tuple[str | None, Resource]) -> bool:
        since = self._failing_since.get(part)
        return part in self._seen and (since is None or self._clock() - since < OUTDATED_AFTER)

    def is_watched(self, namespace: str) -> bool:
        return (None, LLMSERVICE) in self._problems or (namespace, LLMSERVICE) in self._problems

    def is_ready(self) -> bool:
        """Whether each namespace was listed or cannot be for now, and at least one was.

        While the API server is unavailable all activators stay ready: held requests do not need it.
        """
        waits = any(part not in self._seen and problem == "not listed yet" for part, problem in self._problems.items())
        scopes = {scope for scope, _ in self._problems}
        return not waits and any(all((scope, kind) in self._seen for kind in (LLMSERVICE, POD)) for scope in scopes)

    def problems(self, namespace: str | None = None) -> list[str]:
        """One line for each part that is not watched now; with `namespace`, of those that concern it."""
        return [
            f"{f'namespace {scope}: ' if scope else ''}{resource.full_name}: {problem}"
            for (scope, resource), problem in self._problems.items()
            if problem is not None and (namespace is None or scope == self._scope(namespace))
        ]

    def _report(self, part: tuple[str | None, Resource], error: KubeError | None) -> None:
        problem = None if error is None else " ".join(str(error).split())
        if problem is not None and problem != self._problems[part]:
            logger.warning("cannot watch %s: %s", part[1].full_name, problem)
        elif problem is None and self._problems[part] not in (None, "not listed yet"):
            logger.info("%s is watched again", part[1].full_name)
        self._problems[part] = problem
        if problem is None:
            self._seen.add(part)
            self._failing_since.pop(part, None)
        else:
            self._failing_since.setdefault(part, self._clock())
