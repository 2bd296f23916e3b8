"""What the spec and the plan are told by."""

from llmservice_operator.api.reason_docs.doc import Group, ReasonDoc

SPEC = Group(
    "The spec is refused",
    intro=(
        "Nothing was changed: what served before goes on serving. The condition Accepted and one Event say why. Only "
        "NameConflict is in `status.failure` and in the metrics of failures too: the others are not the cluster's."
    ),
    look="The message, which names the field; `kubectl explain llms.spec`.",
    docs={
        "InvalidSpec": ReasonDoc(
            "The spec says something that the operator cannot act on; the message names the field.",
            "Change the field that the message names. Whatever served before goes on serving.",
        ),
        "NameConflict": ReasonDoc(
            "An object with a name that this service needs exists and belongs to somebody else.",
            "Rename or delete the object that the message names, or give the LLMService another name.",
            look="`kubectl get deployment,service NAME -o yaml`: its ownerReferences and managedFields.",
        ),
        "PrecisionUnsupported": ReasonDoc(
            "The accelerator cannot compute in the precision that the spec asks for.",
            "Choose another spec.precision, or a spec.accelerator.products that can.",
        ),
        "TensorParallelSizeInvalid": ReasonDoc(
            "The tensor-parallel size does not divide the model's attention heads.",
            "Set spec.parallelism.tensorParallelSize to a divisor; the message lists those that work.",
        ),
        "UnsupportedCombination": ReasonDoc(
            "Two things that the spec asks for do not go together in vLLM, or not on this accelerator.",
            "Change one of the fields that the message names; docs/reference/compatibility.md lists every such pair.",
            look="The message, and [what goes with what](compatibility.md).",
        ),
        "UnknownFlag": ReasonDoc(
            "spec.runtime.extraArgs holds a flag that this version of vLLM does not have, or an ambiguous "
            "abbreviation.",
            "Correct the flag, or set spec.runtime.version to the vLLM version that has it.",
        ),
        "UnknownVersion": ReasonDoc(
            "The operator has no table of flags for the vLLM version that spec.runtime names.",
            "Use a version that the message lists, or set spec.runtime.version to the one that the image is built "
            "from.",
        ),
        "RevisionNotFound": ReasonDoc(
            "No record is left of the revision that spec.rollout.pinnedRevision names.",
            "Name a revision that `kubectl get controllerrevisions -l llmservice.dev/service=NAME` lists, or remove "
            "spec.rollout.pinnedRevision.",
            look="`kubectl get controllerrevisions -l llmservice.dev/service=NAME`.",
        ),
    },
)

PLAN = Group(
    "It may not fit",
    intro="What the planner says before a pod is made.",
    look="`status.plan`, and `llmservice plan`.",
    docs={
        "DoesNotFit": ReasonDoc(
            "By the plan, the model or the KV cache of one request of full length is larger than the accelerator's "
            "memory; the message has the figures. With fitPolicy Enforce no pod is made or changed, and what serves "
            "goes on.",
            "Make one of the changes in status.plan.remedies, each with a patch for `kubectl patch llms NAME --type "
            "merge -p`, or set spec.fitPolicy to Warn to try it all the same.",
        ),
        "Tight": ReasonDoc(
            "By the plan it fits, or does not, by less than the plan's own error: it may start or not.",
            "Nothing to do if it starts. For a sure start lower spec.batching.maxModelLen to "
            "status.plan.maxModelLen, or take one of status.plan.remedies.",
        ),
        "FactsMissing": ReasonDoc(
            "Too little is known to say whether the model fits; the message says what is missing. It is started all "
            "the same.",
            "Give what the message names: facts of the model in spec.model.architecture, the GPU in "
            "spec.accelerator.products or spec.accelerator.memory, or the right to list nodes.",
            look="`status.plan.missing`.",
        ),
        "InspectingModel": ReasonDoc(
            "A short Job reads the model's config.json and the headers of its weights; the rollout waits for it.",
            "Wait: two minutes at most, and half a minute when its pod cannot run. Facts in spec.model.architecture "
            "make it unnecessary.",
            look="`kubectl get pods -l llmservice.dev/inspects=NAME`.",
        ),
        "ConfigTooComplex": ReasonDoc(
            "Reading the model's config.json took more processor time, memory or time than it may, and was stopped; "
            "the message says which. Nothing was planned, and the model is started all the same.",
            "Give the model's facts in spec.model.architecture: its config.json is not read then. Look at what the "
            "repository holds before you run it: config.json of a usual model is read in milliseconds.",
            look="The metric `llmservice_config_reads_total`, by result.",
        ),
        "PolicyIgnore": ReasonDoc(
            "spec.fitPolicy is Ignore, so nothing was planned.",
            "Set spec.fitPolicy to Warn or Enforce to have the next revision planned.",
        ),
        "Fits": ReasonDoc(
            "By the plan, the model and the KV cache of its longest request fit into the accelerator's memory.",
            "Nothing to do; status.plan has the figures.",
        ),
    },
)
