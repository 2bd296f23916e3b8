"""spec.scaling.autoscaling and spec.scaling.holding: replicas that follow the load, and requests that are held while
none serves."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from llmservice_api import kubernetes
from llmservice_api.base import ApiModel, Many, knob, leaf, section
from llmservice_api.scalars import Quantity, integer_or_auto_schema

MOST_REPLICAS = 1000
MOST_CONCURRENCY = 10_000

Concurrency = Annotated[
    Annotated[int, Field(ge=1, le=MOST_CONCURRENCY)] | Literal["auto"], integer_or_auto_schema(MOST_CONCURRENCY)
]
Cron = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^\S+( \S+){4}$")]
TimeZone = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$")]


class Target(ApiModel):
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
    target: Target = section(Target, "The load of one replica that is aimed at.")
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
