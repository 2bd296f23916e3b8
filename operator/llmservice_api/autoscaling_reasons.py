"""Reasons of the condition Autoscaled and of its Event; members of `reasons.Reason`."""

from __future__ import annotations

from typing import Final

from llmservice_runtime.failures.reasons import Ends

from llmservice_api.reason_sections import AUTOSCALED, FINE

AUTOSCALING: Final = FINE.row(
    "Autoscaling",
    "KEDA sets spec.scaling.replicas by the load, within the bounds of spec.scaling.autoscaling.",
    "Nothing to do.",
)
IDLE: Final = FINE.row(
    "Idle",
    "No requests come, so no replica runs and no accelerator is held. The next request is held and starts a replica, "
    "which answers it.",
    "Nothing to do. Set spec.scaling.autoscaling.minReplicas to 1 to keep a replica.",
    look="`status.endpoint.url`: a POST there starts a replica; the activators' metrics count what is held.",
)
SCALED: Final = FINE.row(
    "Scaled",
    "The autoscaler changed spec.scaling.replicas. Seen in Events only.",
    "Nothing to do.",
    look="The message has both numbers and the load; `kubectl describe scaledobject,hpa` of the namespace.",
)
AUTOSCALING_DISABLED: Final = AUTOSCALED.row(
    "AutoscalingDisabled",
    "spec.scaling.autoscaling is set, and this operator is installed without autoscaling.",
    "Install the chart with autoscaling.enabled=true, as docs/serving/scaling.md describes, or remove "
    "spec.scaling.autoscaling.",
)
KEDA_MISSING: Final = AUTOSCALED.row(
    "KedaMissing",
    "KEDA does not work on the service's ScaledObject: its CRD scaledobjects.keda.sh is not installed, the operator "
    "has no right to it, or KEDA's own operator does not run.",
    "Install KEDA and see that its operator runs; where it does, install the operator's chart with "
    "autoscaling.enabled=true, which grants the right.",
    look="`kubectl get crd scaledobjects.keda.sh`; `kubectl get pods -n keda`; `kubectl describe scaledobject NAME`.",
    ends=Ends.OUTSIDE,
)
QUOTA_BELOW_MAXIMUM: Final = AUTOSCALED.row(
    "QuotaBelowMaximum",
    "Replicas follow the load, and a ResourceQuota of the namespace ends before spec.scaling.autoscaling.maxReplicas.",
    "Have the quota that the message names raised, or lower maxReplicas.",
    look="`kubectl describe resourcequota` of the namespace.",
    ends=Ends.OUTSIDE,
)
REPLICAS_STATED: Final = AUTOSCALED.row(
    "ReplicasStated",
    "A manifest states spec.scaling.replicas beside spec.scaling.autoscaling: each time that it is applied it would "
    "reset the number that the autoscaler wrote. So the service is not autoscaled.",
    "Remove replicas from the manifest that the message names and apply it again.",
    look="`kubectl get llms NAME -o yaml --show-managed-fields`: who applied f:replicas.",
)
AUTOSCALER_CONFLICT: Final = AUTOSCALED.row(
    "AutoscalerConflict",
    "Another autoscaler or another ScaledObject scales this service, so that KEDA does not.",
    "Delete the HorizontalPodAutoscaler, ScaledObject or annotation that the message names, or remove "
    "spec.scaling.autoscaling.",
    look="`kubectl get hpa,scaledobjects` of the namespace.",
    ends=Ends.OUTSIDE,
)
SCALER_UNAVAILABLE: Final = AUTOSCALED.row(
    "ScalerUnavailable",
    "KEDA gets no number of replicas from the scaler, or cannot set it. Replicas are not lowered meanwhile.",
    "See that the scaler's pods run, that KEDA may reach them, and that the certificates of both sides are of the same "
    "authority; docs/serving/scaling.md has the steps.",
    look="`kubectl describe scaledobject,hpa` of the namespace; the logs of the scaler (the Deployment that ends in "
    "-activator) and of KEDA's operator.",
    ends=Ends.OUTSIDE,
)
HOLDING_UNAVAILABLE: Final = AUTOSCALED.row(
    "HoldingUnavailable",
    "Requests could not be held while no replica runs, so one replica stays although no requests come.",
    "Remove the cause that the message names; docs/serving/scale-to-zero.md has the steps. Set "
    "spec.scaling.autoscaling.minReplicas to 1 if a replica is to stay.",
    look="`kubectl get endpointslices -l kubernetes.io/service-name=NAME`; the pods and logs of the Deployment whose "
    "name ends in -activator.",
    ends=Ends.OUTSIDE,
)
