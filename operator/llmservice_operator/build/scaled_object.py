"""The ScaledObject: KEDA scales the LLMService by the number of replicas that the scaler asks for.

What KEDA does with each field, by its source (kedacore/keda 2.21): `minReplicaCount` of 1 or more leaves all scaling to
an HPA. `fallback` holds once the scaler failed more than `failureThreshold` times in a row; with
currentReplicasIfHigher it never lowers the number. With `minReplicaCount` 0 KEDA sets 0 itself once the scaler is not
active for `cooldownPeriod`, and never at an error of the scaler, since `fallback.replicas` is not 0
(pkg/scaling/executor/scale_scaledobjects.go, RequestScale). KEDA replaces the whole object to add its finalizer and
its label, and writes `scalingModifiers: {}` then, and no field that is false: so the first is applied, and none of the
second.
"""

from __future__ import annotations

from typing import Any

from llmservice_operator.api.autoscaling import Autoscaling
from llmservice_operator.api.constants import API_VERSION, KIND
from llmservice_operator.api.holding import is_idle
from llmservice_operator.api.reasons import Reason
from llmservice_operator.api.service import LLMService
from llmservice_operator.build.meta import Manifest, metadata
from llmservice_operator.build.settings import Settings

POLLING_SECONDS = 15
"""How often KEDA brings the ScaledObject's conditions up to date."""
FAILURES = 3
COOLDOWN_SECONDS = 15
"""Until zero, once the scaler is not active: it counts the idle time itself. KEDA ignores this where another than KEDA
changed the number, and warns of it where minReplicaCount is not 0."""
REMOVAL_SECONDS = 60
"""For each replica that is removed: its requests end before the next one goes."""


def why_none(llm: LLMService, settings: Settings) -> Reason | None:
    """Why KEDA is not to scale this service; None: it is to, or the spec does not ask for it."""
    if settings.scaler_address is None or settings.scaler_authentication is None:
        return Reason.AUTOSCALING_DISABLED
    if llm.replicas_stated_by is not None:
        return Reason.REPLICAS_STATED
    # KEDA would raise it to minReplicaCount, and whoever set 0 wants nothing to serve.
    is_users = llm.spec.scaling.replicas == 0 and not is_idle(llm.spec.scaling, llm.status)
    return Reason.SCALED_TO_ZERO if is_users else None


def manifest(llm: LLMService, settings: Settings) -> Manifest | None:
    """None where KEDA is not to scale this service."""
    autoscaling = llm.spec.scaling.autoscaling
    if autoscaling is None or why_none(llm, settings) is not None:
        return None
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata(llm, llm.name),
        "spec": {
            "scaleTargetRef": {"apiVersion": API_VERSION, "kind": KIND, "name": llm.name},
            "minReplicaCount": autoscaling.lowest_minimum,
            "maxReplicaCount": autoscaling.highest_maximum,
            "pollingInterval": POLLING_SECONDS,
            **({"cooldownPeriod": COOLDOWN_SECONDS} if autoscaling.may_be_at_zero else {}),
            "fallback": {
                "failureThreshold": FAILURES,
                "replicas": max(1, autoscaling.lowest_minimum),
                "behavior": "currentReplicasIfHigher",
            },
            "advanced": {
                "horizontalPodAutoscalerConfig": {"behavior": _behavior(autoscaling)},
                "scalingModifiers": {},
            },
            "triggers": [
                {
                    "type": "external-push",
                    "metricType": "AverageValue",
                    "metadata": {"scalerAddress": settings.scaler_address},
                    "authenticationRef": {
                        "name": settings.scaler_authentication,
                        "kind": "ClusterTriggerAuthentication",
                    },
                }
            ],
        },
    }


def _behavior(autoscaling: Autoscaling) -> dict[str, Any]:
    """Up at once and as far as needed, which an HPA does not do by default; down one replica at a time.

    `selectPolicy` is the HPA's default, stated because KEDA otherwise writes the HPA again at each of its reconciles.
    """
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "selectPolicy": "Max",
            "policies": [{"type": "Pods", "value": autoscaling.highest_maximum, "periodSeconds": POLLING_SECONDS}],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": autoscaling.scale_down.stabilization_seconds,
            "selectPolicy": "Max",
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": REMOVAL_SECONDS}],
        },
    }
