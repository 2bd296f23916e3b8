"""What is said where the operator itself failed."""

from llmservice_operator.api.reason_docs.doc import Group, ReasonDoc

INTERNAL = Group(
    "The operator failed",
    intro="A defect of the operator, or an input that it should have refused. Other services are not affected, and "
    "nothing that serves is stopped. Where `Stalled` has the reason, `Ready` is Unknown, and the other conditions are "
    "as they were before the error. Where `Degraded` has it, only the part that the message names fails, and the other "
    "conditions are current.",
    look="The operator's log lines about this service: `kubectl -n llmservice-system logs "
    "deployment/llmservice-operator`; the metric llmservice_internal_errors_total.",
    docs={
        "InternalError": ReasonDoc(
            "The operator failed on an internal error while it handled this service; what serves keeps serving.",
            "Report it, with the operator's log lines about this service. The operator tries again with back-off; "
            "undoing the last edit may avoid the error.",
        ),
        "Quarantined": ReasonDoc(
            "Two operator processes in a row ended abnormally while they handled this service and no other, so it is "
            "not handled any more; what serves keeps serving.",
            "Report it, with the operator's log from before its restarts. A change of the spec or another version of "
            "the operator has it tried again, and so does a new pod of the operator.",
            look="`kubectl -n llmservice-system logs deployment/llmservice-operator --previous`; the restarts of the "
            "operator's pod and the reason of its last termination.",
        ),
    },
)
