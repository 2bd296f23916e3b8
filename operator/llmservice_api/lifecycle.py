"""spec.scaling, spec.rollout, spec.drain, spec.endpoint: number of replicas, their replacement, and access to them."""

from typing import Annotated, Literal

from pydantic import StringConstraints

from llmservice_api.autoscaling import MOST_REPLICAS, Autoscaling, Holding
from llmservice_api.base import ApiModel, knob, section
from llmservice_api.constants import DEFAULT_DRAIN_SECONDS, DEFAULT_ENDPOINT_PORT
from llmservice_api.scalars import SecretKeyRef

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
