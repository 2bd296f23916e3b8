"""What each reason says, in the order of the reference page; api.reasons has the words themselves."""

from llmservice_operator.api.reason_docs import cluster, internal, rollout, server, spec
from llmservice_operator.api.reason_docs.doc import Group, ReasonDoc

GROUPS: tuple[Group, ...] = (
    cluster.PLACE,
    cluster.POD,
    server.MODEL,
    server.START,
    server.END,
    cluster.NODE,
    rollout.ROLLOUT,
    spec.SPEC,
    spec.PLAN,
    internal.INTERNAL,
    rollout.FINE,
)

__all__ = ["GROUPS", "Group", "ReasonDoc"]
