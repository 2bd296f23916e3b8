"""How a change goes, and what is said while nothing is wrong."""

from llmservice_operator.api.reason_docs.doc import Group, ReasonDoc

ROLLOUT = Group(
    "A rollout",
    intro="",
    look="`status.rollout`; `kubectl get pods -l llmservice.dev/service=NAME` shows both revisions.",
    docs={
        "ProgressDeadlineExceeded": ReasonDoc(
            "A rollout made no progress for longer than its deadline.",
            "See status.failure and the pod's log; correct the spec, or raise spec.rollout.progressDeadlineSeconds.",
            look="`status.failure`, and the log of a pod of the new revision.",
        ),
        "NoReplicaReady": ReasonDoc(
            "No replica answers.",
            "See the Ready condition and status.failure for the cause.",
        ),
        "WaitingForGPU": ReasonDoc(
            "spec.rollout.strategy is Surge and no GPU is free for one more pod: the old replicas go on serving.",
            "Free or add a GPU, or set spec.rollout.strategy to Auto or Replace to have a replica replaced in its "
            "place.",
            look="The message: how many GPUs are free, and who holds the others.",
        ),
        "GapExpected": ReasonDoc(
            "There is one replica and no free GPU for a second pod, so that the next change ends it before the new "
            "one serves.",
            "To have no gap free a GPU for the time of the change, or set spec.rollout.strategy to Surge, which "
            "waits for one.",
        ),
        "SurgeFellBack": ReasonDoc(
            "A pod that was to be there before an old one goes found no place in time, so an old one is replaced "
            "first.",
            "Nothing to do; to wait for a place instead, set spec.rollout.strategy to Surge.",
        ),
        "RolledBack": ReasonDoc(
            "The latest revision failed, and what served before it serves again because spec.rollout.autoRollback is "
            "on.",
            "Correct the spec: the next change of it is tried. status.rollout.failedRevision is the one that failed.",
        ),
        "UpdateWaiting": ReasonDoc(
            "A change of the operator was asked for, and other services of the cluster have their turn first.",
            "Wait: it takes effect when they are done.",
        ),
        "StreamsEnded": ReasonDoc(
            "Streams lasted longer than a pod that went away could wait for, and were ended; the message says how "
            "many. Seen in Events only.",
            "Raise spec.drain.timeoutSeconds to the length of your longest answers.",
            look="The metric llmservice_streams_ended_total.",
        ),
        "AdapterNotServed": ReasonDoc(
            "An adapter of the spec cannot be served; the model and the other adapters are. Seen in Events only.",
            "Do what the message and status.adapters say; the server tries again by itself.",
            look="`status.adapters`.",
        ),
    },
)

FINE = Group(
    "Nothing is wrong",
    intro="States that a condition names while all is as it should be.",
    look="The message.",
    docs={
        "Valid": ReasonDoc(
            "The spec is valid and nothing else owns the names that the service needs.",
            "Nothing to do.",
        ),
        "RolledOut": ReasonDoc(
            "Every replica runs the current generation and answers.",
            "Nothing to do.",
        ),
        "ReplicasReady": ReasonDoc(
            "At least one replica answers.",
            "Nothing to do.",
        ),
        "Progressing": ReasonDoc(
            "A rollout is under way and its pods are being made or replaced.",
            "Wait; the message says which step it is at.",
        ),
        "Starting": ReasonDoc(
            "Pods run and the model is being fetched or loaded.",
            "Wait; the message says what the pod is doing. Loading a large model takes minutes.",
            look="`status.progress`.",
        ),
        "StartingSlowly": ReasonDoc(
            "A pod takes longer than such a start usually does, and is still making progress. This is no failure.",
            "Wait. The next start is shorter where the model does not have to be fetched again: give spec.model.cache.",
            look="`status.progress`: what it is doing; the message says how long it usually takes.",
        ),
        "ScaledToZero": ReasonDoc(
            "spec.scaling.replicas is 0, so nothing serves.",
            "Set spec.scaling.replicas to 1 or more, or `kubectl scale llms/NAME --replicas=1`.",
        ),
        "Paused": ReasonDoc(
            "spec.paused is true: the operator changes and repairs nothing.",
            "Set spec.paused to false to have the spec carried out again.",
        ),
        "Deleting": ReasonDoc(
            "The LLMService is being deleted.",
            "Nothing to do.",
        ),
    },
)
