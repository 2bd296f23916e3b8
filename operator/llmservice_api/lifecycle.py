"""spec.scaling, spec.rollout, spec.drain, spec.endpoint, spec.routing: number of replicas, or how it follows the load;
requests that are held while none serves; their replacement, access to them, and which one gets a prompt.

`check_schedule` checks cron expressions and time zones, beyond the schema.
"""

from __future__ import annotations

import calendar
import functools
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import Field, StringConstraints

from llmservice_api import kubernetes
from llmservice_api.base import (
    ApiModel,
    Hostname,
    Many,
    NamespaceName,
    ObjectName,
    Quantity,
    SecretKeyRef,
    integer_or_auto_schema,
    knob,
    leaf,
    section,
)
from llmservice_api.constants import DEFAULT_DRAIN_SECONDS, DEFAULT_ENDPOINT_PORT, ENDPOINT_PICKER_PORT
from llmservice_api.errors import InvalidSpec, Problem

MOST_REPLICAS = 1000
MOST_CONCURRENCY = 10_000

Concurrency = Annotated[
    Annotated[int, Field(ge=1, le=MOST_CONCURRENCY)] | Literal["auto"], integer_or_auto_schema(MOST_CONCURRENCY)
]
Cron = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^\S+( \S+){4}$")]
TimeZone = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$")]


class AutoscalingTarget(ApiModel):
    """The load of one replica that autoscaling aims at."""

    concurrency_per_replica: Concurrency = knob(
        "auto",
        description="Requests in progress for each replica, waiting ones included. auto: from batching.maxNumSeqs and "
        "the KV cache that vLLM reported, or that was planned; status.effective has the number.",
        examples=[16],
    )


class ScaleDown(ApiModel):
    """When replicas are removed."""

    stabilization_seconds: int = knob(
        300,
        description="Seconds for which fewer replicas must have been enough before one is removed.",
        examples=[600],
        bounds=(0, 3600),
    )
    idle_seconds: int = knob(
        600,
        description="Seconds without a request after which the last replica is removed, where minReplicas is 0. The "
        "next request is held while a replica starts.",
        examples=[1800],
        bounds=(5, 86_400),
    )


class ScheduledBounds(ApiModel):
    """Other bounds between two times."""

    start: Cron = Field(description="When these bounds begin to hold, as five cron fields.", examples=["0 8 * * 1-5"])
    end: Cron = Field(description="When these bounds cease to hold, as five cron fields.", examples=["0 20 * * 1-5"])
    time_zone: TimeZone = knob("UTC", description="Name in the IANA time zone database.", examples=["Europe/Berlin"])
    min_replicas: int | None = knob(
        description="minReplicas between these times. Default: autoscaling.minReplicas.",
        examples=[2],
        bounds=(0, MOST_REPLICAS),
    )
    max_replicas: int | None = knob(
        description="maxReplicas between these times. Default: autoscaling.maxReplicas.",
        examples=[8],
        bounds=(1, MOST_REPLICAS),
    )


class Holding(ApiModel):
    """Whose requests are held, how many and how long, while no replica serves."""

    max_requests: int = knob(
        100,
        description="Requests that are held at once; over it clients get 429 with Retry-After.",
        examples=[500],
        bounds=(1, 10_000),
    )
    max_bytes: Quantity = knob(
        "32Mi",
        description="Size of the bodies of all requests that are held, at most 64Mi; over it clients get 429, and 413 "
        "for a body that alone is larger, or is JSON of more than 32Mi.",
        examples=["64Mi"],
    )
    timeout_seconds: int = knob(
        600,
        description="Seconds that a request is held before the client gets 503 with Retry-After. Longer than a start "
        "takes.",
        examples=[1200],
        bounds=(1, 3600),
    )
    rollouts: bool = knob(
        False,
        description="Whether requests are also held while a rollout, or a lost pod, leaves no replica that answers. "
        "Where minReplicas is 0 they always are. Needs `autoscaling.enabled` of the chart, not `autoscaling`.",
        examples=[True],
    )
    clients: kubernetes.NetworkPolicyPeers = leaf(
        list,
        alias="from",
        description="Who may send requests that may be held, as in a NetworkPolicy: others get 403 and wake nobody. "
        "Policies for the model's pods do not apply there. Default: everybody. See docs/serving/scale-to-zero.md.",
        examples=[[{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "chat"}}}]],
    )


class Autoscaling(ApiModel):
    """Bounds and target of a service whose replicas follow its load."""

    min_replicas: int = knob(
        1,
        description="The fewest replicas, whatever the load. 0: none while no requests come; see "
        "docs/serving/scale-to-zero.md.",
        examples=[2],
        bounds=(0, MOST_REPLICAS),
    )
    max_replicas: int = Field(description="The most replicas, whatever the load.", examples=[8], ge=1, le=MOST_REPLICAS)
    target: AutoscalingTarget = section(AutoscalingTarget, "The load of one replica that is aimed at.")
    scale_down: ScaleDown = section(ScaleDown, "When replicas are removed, as the load falls.")
    schedule: Many[ScheduledBounds] = leaf(
        tuple,
        description="Other bounds at times. The first entry whose time it is holds.",
        examples=[[{"start": "0 8 * * 1-5", "end": "0 20 * * 1-5", "timeZone": "Europe/Berlin", "minReplicas": 2}]],
        max_length=16,
    )
    provider: Literal["keda"] = knob(
        "keda", description="What scales: KEDA, which must be installed in the cluster.", examples=["keda"]
    )

    @property
    def lowest_minimum(self) -> int:
        return min([self.min_replicas, *(self.bounds(entry)[0] for entry in self.schedule)])

    @property
    def may_be_at_zero(self) -> bool:
        """Whether there are times without a replica."""
        return self.lowest_minimum == 0

    @property
    def highest_maximum(self) -> int:
        return max([self.max_replicas, *(self.bounds(entry)[1] for entry in self.schedule)])

    def bounds(self, entry: ScheduledBounds) -> tuple[int, int]:
        """Bounds (lowest, highest) while an entry of the schedule is in force."""
        fewest = self.min_replicas if entry.min_replicas is None else entry.min_replicas
        most = self.max_replicas if entry.max_replicas is None else entry.max_replicas
        return fewest, most


Revision = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]+$")]


class Scaling(ApiModel):
    """How many replicas serve."""

    replicas: int = knob(
        1,
        description="Number of replicas, each with a copy of the model. `kubectl scale` and autoscalers (target "
        "LLMService, by its /scale) set it too. 0 stops serving and frees the accelerators.",
        examples=[2],
        bounds=(0, MOST_REPLICAS),
    )
    autoscaling: Autoscaling | None = knob(
        description="Replicas follow the load, between bounds. Leave `replicas` out then: the autoscaler writes it.",
        examples=[{"maxReplicas": 4}],
    )
    holding: Holding = section(
        Holding, "Requests that come while no replica serves: where minReplicas is 0, or with `rollouts`."
    )

    @property
    def may_be_at_zero(self) -> bool:
        """Whether autoscaling may remove the last replica."""
        return self.autoscaling is not None and self.autoscaling.may_be_at_zero

    @property
    def holds(self) -> bool:
        """Whether requests are held while no replica answers."""
        return self.may_be_at_zero or self.holding.rollouts


class Rollout(ApiModel):
    """How a change that needs a restart replaces what serves."""

    strategy: Literal["Auto", "Surge", "Replace", "Recreate"] = knob(
        "Auto",
        description="How replicas are replaced. Surge starts a new one first and needs free accelerators; Replace "
        "stops one first (of one replica: a gap); Recreate stops all first. Auto is Surge where a node has "
        "room, else Replace; status.rollout says which. See docs/serving/rollouts.md.",
        examples=["Surge"],
    )
    progress_deadline_seconds: int | None = knob(
        description="Seconds without progress after which a rollout is reported as failed; what serves goes on "
        "serving. Default: longer than a model may take to start.",
        examples=[3600],
        bounds=(60, 604_800),
    )
    auto_rollback: bool = knob(
        False,
        description="Whether a revision that finally failed to become ready gives way, by itself, to the last one that "
        "was fully rolled out. status.rollout.failedRevision names it; the next change of the spec is tried again.",
        examples=[True],
    )
    pinned_revision: Revision | None = knob(
        description="A recorded revision to run whatever the rest of the spec says, as in "
        "status.rollout.stableRevision; replicas, Service and drain settings still apply. `llmservice rollback` sets "
        "it; remove it to return to the spec. See docs/serving/rollouts.md.",
        examples=["c04d4f36b5"],
    )


class Drain(ApiModel):
    """How a replica that is going away treats the requests it is working on."""

    timeout_seconds: int = knob(
        DEFAULT_DRAIN_SECONDS,
        description="Seconds that running requests get to finish when a replica goes away. Streams that take longer "
        "are ended, and counted. Raise it for long generations.",
        examples=[300],
        bounds=(0, 3600),
    )


class GatewayRef(ApiModel):
    """A Gateway of the Gateway API, or one of its listeners."""

    name: ObjectName = Field(description="Name of the Gateway, an object of the Gateway API.")
    namespace: NamespaceName | None = knob(
        description="Namespace of the Gateway; its listener has to admit routes of this one. Default: the namespace of "
        "the LLMService.",
        examples=["gateways"],
    )
    section_name: ObjectName | None = knob(
        description="Name of one listener of the Gateway. Default: all of them.", examples=["https"]
    )


class Gateway(ApiModel):
    """A way in from outside of the cluster: an HTTPRoute of the LLMService's name."""

    ref: GatewayRef = Field(description="The Gateway that takes the requests.")
    hostnames: Many[Hostname] = knob(
        (),
        description="Hosts whose requests for /v1 come here. Several services may have the same ones, each with "
        "byModel. Default: those of the Gateway's listeners.",
        examples=[["models.example.com"]],
        max_length=16,
    )
    by_model: bool = knob(
        False,
        description="Only requests come here whose header X-Gateway-Model-Name (the chart's gateway.modelHeader) names "
        "a model or an adapter of this service, so that all models may have one address. Default: false.",
        examples=[True],
    )


class Endpoint(ApiModel):
    """The Service in front of the replicas; it has the name of the LLMService."""

    port: int = knob(
        DEFAULT_ENDPOINT_PORT,
        description="Port of the Service. The OpenAI API is at http://NAME.NAMESPACE.svc:PORT/v1.",
        examples=[8080],
        bounds=(1, 65_535),
    )
    api_key_secret_ref: SecretKeyRef | None = knob(
        description="Secret key with API keys, one a line; clients then send `Authorization: Bearer KEY` with one of "
        "them. It guards every path but /health, /ping and /metrics. Changed keys hold within two minutes, without a "
        "restart; without a usable key nobody is let in.",
        examples=[{"name": "llm-keys", "key": "api-key"}],
    )
    gateway: Gateway | None = knob(
        description="A Gateway that takes requests from outside of the cluster for this service. See "
        "docs/serving/gateway.md. Default: none.",
        examples=[{"ref": {"name": "public", "namespace": "gateways"}, "hostnames": ["models.example.com"]}],
    )


class EndpointPicker(ApiModel):
    """The Service of an endpoint picker (EPP), which chooses a replica for each request of a Gateway."""

    name: ObjectName | None = knob(
        description="Name of the Service, in the namespace of the LLMService. Default: NAME-epp.", examples=["chat-epp"]
    )
    port: int = knob(
        ENDPOINT_PICKER_PORT,
        description="Port of the Service, for the Gateway's questions.",
        examples=[9002],
        bounds=(1, 65_535),
    )


class Routing(ApiModel):
    """Whether prompts go to the replica that has computed their beginning."""

    mode: Literal["none", "router", "pool"] = knob(
        "none",
        description="none: connections are spread over replicas. router: the Service leads to pods that choose one for "
        "each prompt; NAME-direct goes past. pool: the Gateway asks an endpoint picker of yours. `llmservice "
        "advise routing` says whether it pays. See docs/serving/routing.md.",
        examples=["router"],
    )
    policy: Literal["cache_aware", "consistent_hash", "power_of_two"] = knob(
        "cache_aware",
        description="How a replica is chosen: by the prompts that each got before; by the header X-Session-ID; or the "
        "less busy one of two.",
        examples=["consistent_hash"],
    )
    router_replicas: int = knob(
        2, description="Pods of the router. While none is ready, requests go past it.", examples=[3], bounds=(1, 10)
    )
    endpoint_picker: EndpointPicker = section(EndpointPicker, "With mode pool: who chooses the replica.")

    @property
    def has_router(self) -> bool:
        return self.mode == "router"

    @property
    def has_pool(self) -> bool:
        return self.mode == "pool"


_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)
_CRON_REMEDY = (
    "Write five fields: minute, hour, day of the month, month, day of the week, as in 0 8 * * 1-5 for 8:00 from Monday "
    "to Friday."
)
_NEVER_REMEDY = (
    "Where the day of the month or the day of the week begins with *, a day must match both; otherwise one of them is "
    "enough."
)
_ZONE_REMEDY = "Write a name of the IANA time zone database, as in Europe/Berlin or UTC."


def check_schedule(autoscaling: Autoscaling | None) -> None:
    """InvalidSpec with every invalid cron expression and time zone."""
    if autoscaling is not None and (problems := list(_problems(autoscaling))):
        raise InvalidSpec(problems)


def _problems(autoscaling: Autoscaling) -> Iterator[Problem]:
    for index, entry in enumerate(autoscaling.schedule):
        at = f"spec.scaling.autoscaling.schedule[{index}]"
        for name, expression in (("start", entry.start), ("end", entry.end)):
            if not is_cron(expression):
                yield Problem(f"{at}.{name}", f"{expression} is not a time in cron's notation.", _CRON_REMEDY)
            elif not ever_comes(expression):
                yield Problem(f"{at}.{name}", f"{expression} is a time that never comes.", _NEVER_REMEDY)
        if not is_time_zone(entry.time_zone):
            yield Problem(f"{at}.timeZone", f"{entry.time_zone} is not the name of a time zone.", _ZONE_REMEDY)


def is_cron(expression: str) -> bool:
    try:
        CronSim(expression, _ANY_TIME)
    except (CronSimError, ValueError, TypeError, AssertionError):
        # The last three occur where it mixes notations for the last day of a month with ranges.
        return False
    return True


@functools.lru_cache(maxsize=4096)
def ever_comes(expression: str) -> bool:
    """Whether any day matches a cron expression.

    A match depends on the day's number, its weekday and the month's length, so that one month of each length and first
    weekday is sufficient; `CronSim` itself searches fifty years.
    """
    cron = CronSim(expression, _ANY_TIME)
    lengths = {length for month in cron.months for length in _LENGTHS[month]}
    months = (month for length in sorted(lengths, reverse=True) for month in _MONTHS[length])
    return any(cron.match_day(date(year, month, day)) for year, month, last in months for day in range(1, last + 1))


_LENGTHS = {month: {calendar.monthrange(year, month)[1] for year in (2001, 2004)} for month in range(1, 13)}


def _months() -> dict[int, list[tuple[int, int, int]]]:
    """By length: a month (year, month, last day) for each first weekday."""
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    for year in range(2000, 2028):
        for month in range(1, 13):
            weekday, last = calendar.monthrange(year, month)
            found.setdefault((last, weekday), (year, month, last))
    return {length: [each for (last, _), each in found.items() if last == length] for length in range(28, 32)}


_MONTHS = _months()


def is_time_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True
