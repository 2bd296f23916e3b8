"""Sections of docs/reference/reasons.md: reasons with the same way to investigate."""

from typing import Final

from llmservice_runtime.failures.reasons import END, MODEL, SPEC, START, Section

from llmservice_api.constants import SERVICE_LABEL

PLACE = Section(
    "No pod can be made or placed",
    look=f"`kubectl describe pod -l {SERVICE_LABEL}=NAME`; the message has the scheduler's own words.",
)
POD = Section(
    "A pod does not get going",
    look=f"`kubectl describe pod -l {SERVICE_LABEL}=NAME`; the message has the kubelet's own words.",
)
NODE = Section("The node or the network", look="`kubectl get nodes`, `kubectl describe node NODE`.")
ROLLOUT = Section(
    "A rollout", look=f"`status.rollout`; `kubectl get pods -l {SERVICE_LABEL}=NAME` shows both revisions."
)
PLAN = Section(
    "It may not fit", intro="What the planner says before a pod is made.", look="`status.plan`, and `llmservice plan`."
)
AUTOSCALED = Section(
    "Replicas do not follow the load",
    intro="Reasons of the condition Autoscaled, which is there while spec.scaling.autoscaling is. They change neither "
    "Ready nor what serves.",
    look="`kubectl describe scaledobject,hpa` of the namespace.",
)
INTERNAL = Section(
    "The operator failed",
    intro="A defect of the operator, or an input that it should have refused. Other services are not affected, and "
    "nothing that serves is stopped. Where `Stalled` has the reason, `Ready` is Unknown, and the other "
    "conditions are as they were before the error. Where `Degraded` has it, only the part that the message "
    "names fails, and the other conditions are current.",
    look="The operator's log lines about this service: `kubectl -n llmservice-system logs "
    "deployment/llmservice-operator`; the metric llmservice_internal_errors_total.",
)
FINE = Section(
    "Nothing is wrong", intro="States that a condition names while all is as it should be.", look="The message."
)

SECTIONS: Final = (PLACE, POD, MODEL, START, END, NODE, ROLLOUT, SPEC, PLAN, AUTOSCALED, INTERNAL, FINE)
"""In the order of the page."""
