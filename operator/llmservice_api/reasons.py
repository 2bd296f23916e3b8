"""Every reason of a condition, an Event or a failure: the operator's own, and those that pods report.

`make crds` generates docs/reference/reasons.md from the rows, by sections with the same way to investigate.
"""

from __future__ import annotations

from typing import Final

from llmservice_runtime.failures.reasons import END, MODEL, SPEC, START, Ends, Explained, FailureReason, Section

from llmservice_api.constants import INSPECTS_LABEL, ROUTER_LABEL, SERVICE_LABEL

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
ROUTED = Section(
    "Requests are not routed",
    intro="Reasons of the condition RoutingReady, which is there while spec.routing asks for a router or a pool, or "
    "spec.endpoint.gateway for a Gateway. They change neither Ready nor what the Service's own address serves.",
    look=f"`kubectl describe deployment NAME-router`; `kubectl get pods -l {ROUTER_LABEL}=NAME` and their logs; "
    "`kubectl describe httproute,inferencepool NAME`.",
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

SECTIONS: Final = (PLACE, POD, MODEL, START, END, NODE, ROLLOUT, SPEC, PLAN, AUTOSCALED, ROUTED, INTERNAL, FINE)
"""In the order of the page."""


class Reason(Explained):
    """The operator's own reasons and those of pods: `Reason(FailureReason.X)` is the member X."""

    INSUFFICIENT_GPUS = PLACE.row(
        "InsufficientGPUs",
        "No node has as many free GPUs as a pod of this service needs. The message says how many are free, of which "
        "product, and who holds the others: services of its namespace by name, pods of other namespaces as a number; "
        "it is brought up to date once a minute.",
        "Free GPUs, add nodes with them, or ask for less: spec.parallelism, spec.scaling.replicas, or another "
        "spec.accelerator.products.",
        look="The message; `kubectl describe nodes` lists who asks for how much.",
        ends=Ends.OUTSIDE,
    )
    INSUFFICIENT_RESOURCES = PLACE.row(
        "InsufficientResources",
        "No node has as much free CPU, memory, storage, or as many free places for pods, as a pod of this service "
        "asks for.",
        "Ask for less in spec.runtime.resources, free some, or add nodes.",
        ends=Ends.OUTSIDE,
    )
    UNTOLERATED_TAINT = PLACE.row(
        "UntoleratedTaint",
        "The nodes that could take the pod carry a taint that it does not tolerate, or their node controller does: a "
        "node that is not reachable, not ready, or short of memory or disk is tainted too.",
        "Add a toleration in spec.podTemplate.spec.tolerations, or take the taint off (`kubectl taint nodes NODE "
        "KEY-`).",
        look="`kubectl describe nodes`: their Taints.",
        ends=Ends.OUTSIDE,
    )
    NO_MATCHING_NODE = PLACE.row(
        "NoMatchingNode",
        "No node matches the pod's node selector, affinity or spread constraints, among them the GPU product that "
        "the spec asks for.",
        "Correct spec.podTemplate.spec.nodeSelector, spec.podTemplate.spec.affinity or spec.accelerator.products, or "
        "label a node. Where nodes have no label of their GPU's product, spec.accelerator.memory goes without one.",
        look="`kubectl get nodes --show-labels`, beside the pod's nodeSelector and affinity.",
        ends=Ends.OUTSIDE,
    )
    VOLUME_UNAVAILABLE = PLACE.row(
        "VolumeUnavailable",
        "A volume cannot be mounted: its claim does not exist or is not bound, or what it is made of (a Secret, a "
        "key of it, a ConfigMap) is missing or cannot be reached.",
        "Create or repair what the message names, or correct the reference to it: spec.model.uri, spec.model.cache, "
        "spec.endpoint.apiKeySecretRef or spec.podTemplate.spec.volumes.",
        look="`kubectl get pvc`, and `kubectl describe pvc CLAIM`, which says why it is not bound; of a Secret, its "
        "name and its keys.",
        ends=Ends.OUTSIDE,
    )
    UNSCHEDULABLE = PLACE.row(
        "Unschedulable",
        "The scheduler finds no node with room for a pod; the message quotes it.",
        "Free or add nodes with the accelerator that is asked for, or change spec.accelerator, spec.parallelism, "
        "spec.runtime.resources or the placement fields in spec.podTemplate.spec.",
        ends=Ends.OUTSIDE,
    )
    SCHEDULING_GATED = PLACE.row(
        "SchedulingGated",
        "A pod has a scheduling gate: the scheduler looks for no node until who set the gate takes it away, as Kueue "
        "does once its queue has quota. This time does not count towards the deadline of the rollout.",
        "Look at who set the gate. For Kueue: free quota of the queue that the pod's label kueue.x-k8s.io/queue-name "
        "names, or have it raised.",
        look="The message, which names the gate; of Kueue's, `kubectl get workloads`.",
        ends=Ends.OUTSIDE,
    )
    QUOTA_EXCEEDED = PLACE.row(
        "QuotaExceeded",
        "A ResourceQuota of the namespace refuses the pods.",
        "Have the quota that the message names raised, or need less of what it counts: fewer replicas or services, or "
        "less in spec.runtime.resources.",
        look="`kubectl describe resourcequota`.",
    )
    LIMIT_RANGE_EXCEEDED = PLACE.row(
        "LimitRangeExceeded",
        "A LimitRange of the namespace does not admit the pods or claims: the message has its bound. Where that is a "
        "limit which the spec does not set, it is a default of the LimitRange, and below what the pod requests.",
        "Set requests and limits within the bound, and a limit where the LimitRange has a default, in "
        "spec.runtime.resources; of the operator's own containers in services.helperCpu and services.helperMemory of "
        "its chart's values; of a claim in spec.model.cache.size. Or have the LimitRange changed.",
        look="`kubectl describe limitrange`; `llmservice doctor`.",
    )
    ADMISSION_REFUSED = PLACE.row(
        "AdmissionRefused",
        "The API server or an admission webhook refuses an object that the service needs, or the deletion of one that "
        "it no longer needs; the message quotes it.",
        "Change the field or the policy that the message names.",
        look="The message: it names the policy or webhook.",
    )
    ADMISSION_UNAVAILABLE = PLACE.row(
        "AdmissionUnavailable",
        "An admission webhook that has to be asked before a pod is made does not answer; what serves goes on.",
        "Bring back the webhook that the message names, or have its owner set failurePolicy: Ignore.",
        look="`kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations`.",
        ends=Ends.BY_RESTART,
    )
    API_SERVER_FAILING = PLACE.row(
        "APIServerFailing",
        "The API server fails, or does not answer, each time the operator writes an object of the service; the message "
        "quotes it. What serves goes on.",
        "Nothing needs to be done where it passes: the operator tries again by itself. Where it stays, read the API "
        "server's log; a value that it cannot merge, such as two volumes of one name, is in the object that the "
        "message names.",
        look="The message; `kubectl get --raw /readyz?verbose`, and the API server's log.",
        ends=Ends.OUTSIDE,
    )
    IMAGE_NOT_FOUND = POD.row(
        "ImageNotFound",
        "The registry has no such image or tag, its name is not a valid one, or the node may not pull and does not "
        "have it.",
        "Correct spec.runtime.image, or its spec.runtime.imagePullPolicy where that is Never.",
    )
    IMAGE_PULL_DENIED = POD.row(
        "ImagePullDenied",
        "The registry does not give this image to the cluster. Some registries say so of images that do not exist.",
        "Name a Secret with a login for it in spec.runtime.imagePullSecrets, and check the name in spec.runtime.image.",
        look="The message, and the Secrets in spec.runtime.imagePullSecrets: of which registry, and in this namespace?",
    )
    IMAGE_ARCHITECTURE_MISMATCH = POD.row(
        "ImageArchitectureMismatch",
        "The image has no build for the CPU architecture of the node that the pod was placed on.",
        "Place the pods on nodes of an architecture that the image has, with kubernetes.io/arch in "
        "spec.podTemplate.spec.nodeSelector, or set spec.runtime.image to an image for that of the node.",
        look="`kubectl get nodes -L kubernetes.io/arch`; the platforms that the image's registry lists.",
    )
    REGISTRY_UNAVAILABLE = POD.row(
        "RegistryUnavailable",
        "The image's registry does not answer the node, or turns it away for now (429, 5xx). The kubelet tries again "
        "by itself, with growing pauses.",
        "Wait. Where it lasts, look at the registry and its limits, at the node's name server, proxy and network.",
        look="The message, which quotes the node's container runtime; the registry's own status.",
        ends=Ends.BY_TIME,
    )
    IMAGE_PULL_FAILED = POD.row(
        "ImagePullFailed",
        "A node cannot pull an image: its name server does not know the registry's host, it does not trust the "
        "registry's certificate, or what the message says. The kubelet tries again by itself, with growing pauses.",
        "Check spec.runtime.image, and spec.runtime.imagePullSecrets where the registry asks for a login.",
        ends=Ends.BY_TIME,
    )
    CONTAINER_CONFIG_INVALID = POD.row(
        "ContainerConfigInvalid",
        "The kubelet cannot set a container up: a Secret, ConfigMap, key or volume that it needs is missing.",
        "Create what the message names, or correct the reference to it in the spec.",
        look="The message; `kubectl get secrets,configmaps` of the namespace.",
    )
    CONTAINER_NOT_STARTED = POD.row(
        "ContainerNotStarted",
        "The node's container runtime cannot start a container; nothing of it has run, and it has no log. The message "
        "quotes the runtime.",
        "Correct what the message names: a path in spec.podTemplate.spec.volumeMounts, a program that the image in "
        "spec.runtime.image lacks, spec.podTemplate.spec.runtimeClassName, or the node's container runtime itself.",
        look="`kubectl describe pod POD`: State and Last State of the container.",
        ends=Ends.BY_TIME,
    )
    INIT_CONTAINER_FAILED = POD.row(
        "InitContainerFailed",
        "A container that runs before the server ended with an error.",
        "Correct it in spec.podTemplate.spec.initContainers; the one named `runtime` is the operator's, whose image "
        "the node must be able to run.",
        look="`kubectl logs POD -c CONTAINER --previous`.",
        ends=Ends.BY_RESTART,
    )
    INJECTED_CONTAINER_FAILED = POD.row(
        "InjectedContainerFailed",
        "A container that is not of this service fails, or is not ready: a webhook or policy of the cluster added it "
        "to the pod, as service meshes and agents do.",
        "Read its log, where it has run, and ask those who run what adds it. Most of them leave out a pod with a "
        "label or annotation of theirs, which spec.podTemplate.metadata can set.",
        look="`kubectl logs POD -c CONTAINER`, with `--previous` where it ended; `kubectl get "
        "mutatingwebhookconfigurations,mutatingadmissionpolicies`.",
        ends=Ends.BY_RESTART,
    )
    POD_SANDBOX_FAILED = POD.row(
        "PodSandboxFailed",
        "The node cannot set up the pod's sandbox, its network or the devices that it claims.",
        "It is tried again; if it stays, look at the node's container runtime, network plugin and device drivers.",
        ends=Ends.BY_TIME,
    )
    _ignore_ = "each"
    for each in FailureReason:
        vars()[each.name] = each.row
    CRASH_LOOP = END.row(
        "CrashLoop",
        "The container ended again and again and left no word about why; it is started with growing pauses.",
        "Read the last lines in status.failure.evidence and `kubectl logs --previous`, then correct the image or the "
        "spec.",
    )
    GROUP_RESTART_BUDGET_EXHAUSTED = END.row(
        "GroupRestartBudgetExhausted",
        "The pods of a replica over several nodes started vLLM together as often as they may within an hour, and start "
        "it no more. The message has the rank on which it failed first, and why.",
        "Then delete the pod of rank 0, or change the spec: new pods start with a new budget.",
        look="`status.groups` has the pods of each replica and what they do; `llmservice logs` shows their logs.",
    )
    UNKNOWN = END.row(
        "Unknown",
        "The container ended and left no word about why.",
        "Read `kubectl logs --previous` and `kubectl describe` of the pod.",
        look="`kubectl logs --previous` and `kubectl describe pod`: the reason and exit code of its last state.",
        ends=Ends.BY_RESTART,
    )
    NODE_LOST = NODE.row(
        "NodeLost",
        "The node of a pod no longer reports to the cluster, so that the pod counts as not ready; its requests fail "
        "or hang.",
        "Bring the node back or delete it (`kubectl delete node NODE`). After its tolerations' time, five minutes by "
        "default, the pod is made anew elsewhere; one of a replica over several nodes only once the Node is deleted or "
        "has the taint node.kubernetes.io/out-of-service.",
        look="`kubectl get nodes`: is it NotReady? Then the node itself, and its way to the API server.",
        ends=Ends.OUTSIDE,
    )
    NODE_DISK_FULL = NODE.row(
        "NodeDiskFull",
        "The node's disk is full, so that an image cannot be unpacked, or a pod not be set up. The kubelet removes "
        "images that no pod uses, and tries again.",
        "A runtime image alone takes 10 to 30 GB unpacked: give the node a larger disk for images, or remove images "
        "and pods that it does not need.",
        look="`kubectl describe node NODE`: the condition DiskPressure, and ephemeral-storage; `crictl images` there.",
        ends=Ends.BY_TIME,
    )
    DRIVER_UNAVAILABLE = NODE.row(
        "DriverUnavailable",
        "The node cannot give a container its GPU yet: the driver is not loaded, was updated without a reboot, or has "
        "no CDI specification of the device. Nothing of the container has run; it is tried again.",
        "Wait, where the node has just started or its driver is being updated. Where it lasts, look at the driver "
        "and at the pods of the GPU operator on the node; `nvidia-smi` there shows whether the driver works.",
        look="The message, which quotes the container runtime; `nvidia-smi` on the node; the GPU operator's pods.",
        ends=Ends.BY_TIME,
    )
    EVICTED = NODE.row(
        "Evicted",
        "The node put the pod out because it ran short of disk or memory; another one is made.",
        "Free space on the node, or ask for what the pod really needs in spec.runtime.resources, ephemeral-storage "
        "included.",
        look="`kubectl describe node NODE`: the conditions DiskPressure and MemoryPressure.",
        ends=Ends.OUTSIDE,
    )
    POD_REJECTED = NODE.row(
        "PodRejected",
        "The node refused the pod after the scheduler had chosen it; another one is made.",
        "Look at the node's kubelet and device plugin; a GPU that its plugin no longer offers is the usual cause.",
        ends=Ends.OUTSIDE,
    )
    PROBE_BLOCKED = NODE.row(
        "ProbeBlocked",
        "The server runs, and the kubelet's probes get no answer from its port 8081: a NetworkPolicy, a firewall "
        "rule or a proxy on the node keeps them off, or the node has no CPU time left for the pod.",
        "Let the node reach port 8081 of the pod. The evidence is what the kubelet says of its probe.",
        look="`kubectl describe pod POD`: the Events named Unhealthy; `kubectl get networkpolicies`; the node's "
        "firewall.",
        ends=Ends.OUTSIDE,
    )
    NO_ENDPOINTS = NODE.row(
        "NoEndpoints",
        "Pods are ready, and the Service has no address for them, so that its clients are refused.",
        "Look at who changed the Service's selector, and at the cluster's endpoint slice controller.",
        look="`kubectl get endpointslices -l kubernetes.io/service-name=NAME`, beside `kubectl get pods -o wide`.",
        ends=Ends.OUTSIDE,
    )
    PROGRESS_DEADLINE_EXCEEDED = ROLLOUT.row(
        "ProgressDeadlineExceeded",
        "A rollout made no progress for longer than its deadline.",
        "See status.failure and the pod's log; correct the spec, or raise spec.rollout.progressDeadlineSeconds.",
        look="`status.failure`, and the log of a pod of the new revision.",
    )
    NO_REPLICA_READY = ROLLOUT.row(
        "NoReplicaReady", "No replica answers.", "See the Ready condition and status.failure for the cause."
    )
    WAITING_FOR_GPU = ROLLOUT.row(
        "WaitingForGPU",
        "spec.rollout.strategy is Surge and no GPU is free for one more pod: the old replicas go on serving.",
        "Free or add a GPU, or set spec.rollout.strategy to Auto or Replace to have a replica replaced in its place.",
        look="The message: how many GPUs are free, and who holds the others.",
    )
    GAP_EXPECTED = ROLLOUT.row(
        "GapExpected",
        "There is one replica and no free GPU for a second pod, so that the next change ends it before the new one "
        "serves.",
        "To have no gap free a GPU for the time of the change, or set spec.rollout.strategy to Surge, which waits "
        "for one.",
    )
    SURGE_FELL_BACK = ROLLOUT.row(
        "SurgeFellBack",
        "A pod that was to be there before an old one goes found no place in time, so an old one is replaced first.",
        "Nothing to do; to wait for a place instead, set spec.rollout.strategy to Surge.",
    )
    ROLLED_BACK = ROLLOUT.row(
        "RolledBack",
        "The latest revision failed, and what served before it serves again because spec.rollout.autoRollback is on.",
        "Correct the spec: the next change of it is tried. status.rollout.failedRevision is the one that failed.",
    )
    UPDATE_WAITING = ROLLOUT.row(
        "UpdateWaiting",
        "A change of the operator was asked for, and other services of the cluster have their turn first.",
        "Wait: it takes effect when they are done.",
    )
    STREAMS_ENDED = ROLLOUT.row(
        "StreamsEnded",
        "Streams lasted longer than a pod that went away could wait for, and were ended; the message says how many. "
        "Seen in Events only.",
        "Raise spec.drain.timeoutSeconds to the length of your longest answers.",
        look="The metric llmservice_streams_ended_total.",
    )
    ADAPTER_NOT_SERVED = ROLLOUT.row(
        "AdapterNotServed",
        "An adapter of the spec cannot be served; the model and the other adapters are. Seen in Events only.",
        "Do what the message and status.adapters say; the server tries again by itself.",
        look="`status.adapters`.",
    )
    INVALID_SPEC = SPEC.row(
        "InvalidSpec",
        "The spec says something that the operator cannot act on; the message names the field.",
        "Change the field that the message names. Whatever served before goes on serving.",
    )
    NAME_CONFLICT = SPEC.row(
        "NameConflict",
        "An object with a name that this service needs exists and belongs to somebody else.",
        "Rename or delete the object that the message names, or give the LLMService another name.",
        look="`kubectl get deployment,service NAME -o yaml`: its ownerReferences and managedFields.",
    )
    TENSOR_PARALLEL_SIZE_INVALID = SPEC.row(
        "TensorParallelSizeInvalid",
        "The tensor-parallel size does not divide the model's attention heads.",
        "Set spec.parallelism.tensorParallelSize to a divisor; the message lists those that work.",
    )
    UNSUPPORTED_COMBINATION = SPEC.row(
        "UnsupportedCombination",
        "Two things that the spec asks for do not go together in vLLM, or not on this accelerator.",
        "Change one of the fields that the message names; docs/reference/compatibility.md lists every such pair.",
        look="The message, and [what goes with what](compatibility.md).",
    )
    UNKNOWN_FLAG = SPEC.row(
        "UnknownFlag",
        "spec.runtime.extraArgs holds a flag that this version of vLLM does not have, or an ambiguous abbreviation.",
        "Correct the flag, or set spec.runtime.version to the vLLM version that has it.",
    )
    UNKNOWN_VERSION = SPEC.row(
        "UnknownVersion",
        "The operator has no table of flags for the vLLM version that spec.runtime names.",
        "Use a version that the message lists, or set spec.runtime.version to the one that the image is built from.",
    )
    REVISION_NOT_FOUND = SPEC.row(
        "RevisionNotFound",
        "No record is left of the revision that spec.rollout.pinnedRevision names.",
        f"Name a revision that `kubectl get controllerrevisions -l {SERVICE_LABEL}=NAME` lists, or remove "
        "spec.rollout.pinnedRevision.",
        look=f"`kubectl get controllerrevisions -l {SERVICE_LABEL}=NAME`.",
    )
    REVISION_UNPROTECTED = SPEC.row(
        "RevisionUnprotected",
        "The revision that runs, or that spec.rollout.pinnedRevision names, was made without protection that the spec "
        "asks for now: an API key, narrower media domains, no code of the model's own, or a security context.",
        "Remove spec.rollout.pinnedRevision, or set it anew: a rollback that begins now has today's protection. One to "
        "a record of an early release, which cannot be rendered with it, is refused.",
        look="The message, which names the fields; `llmservice history`.",
    )
    DOES_NOT_FIT = PLAN.row(
        "DoesNotFit",
        "By the plan, the model or the KV cache of one request of full length is larger than the accelerator's "
        "memory; the message has the figures. With fitPolicy Enforce no pod is made or changed, and what serves goes "
        "on. A pod that came to another GPU than was planned, and failed there, is planned again for that card, and "
        "the message names it.",
        "Make one of the changes in status.plan.remedies, each with a patch for `kubectl patch llms NAME --type "
        "merge -p`, or set spec.fitPolicy to Warn to try it all the same.",
    )
    TIGHT = PLAN.row(
        "Tight",
        "By the plan it fits, or does not, by less than the plan's own error: it may start or not.",
        "Nothing to do if it starts. For a sure start lower spec.batching.maxModelLen to status.plan.maxModelLen, or "
        "take one of status.plan.remedies.",
    )
    FACTS_MISSING = PLAN.row(
        "FactsMissing",
        "Too little is known to say whether the model fits; the message says what is missing. It is started all the "
        "same.",
        "Give what the message names: facts of the model in spec.model.architecture, the memory of a GPU in "
        "spec.accelerator.memory, its product in spec.accelerator.products where nodes have that label, a toleration, "
        "or the right to list nodes.",
        look="`status.plan.missing`.",
    )
    INSPECTING_MODEL = PLAN.row(
        "InspectingModel",
        "A short Job reads the model's config.json and the headers of its weights; the rollout waits for it.",
        "Wait: two minutes at most, and half a minute when its pod cannot run. Facts in spec.model.architecture make "
        "it unnecessary.",
        look=f"`kubectl get pods -l {INSPECTS_LABEL}=NAME`.",
    )
    CONFIG_TOO_COMPLEX = PLAN.row(
        "ConfigTooComplex",
        "Reading the model's config.json took more processor time, memory or time than it may, and was stopped; the "
        "message says which. Nothing was planned, and the model is started all the same.",
        "Give the model's facts in spec.model.architecture: its config.json is not read then. Look at what the "
        "repository holds before you run it: config.json of a usual model is read in milliseconds.",
        look="The metric `llmservice_config_reads_total`, by result.",
    )
    POLICY_IGNORE = PLAN.row(
        "PolicyIgnore",
        "spec.fitPolicy is Ignore, so nothing was planned.",
        "Set spec.fitPolicy to Warn or Enforce to have the next revision planned.",
    )
    FITS = PLAN.row(
        "Fits",
        "By the plan, the model and the KV cache of its longest request fit into the accelerator's memory.",
        "Nothing to do; status.plan has the figures.",
    )
    AUTOSCALING_DISABLED = AUTOSCALED.row(
        "AutoscalingDisabled",
        "spec.scaling.autoscaling is set, and this operator is installed without autoscaling.",
        "Install the chart with autoscaling.enabled=true, as docs/serving/scaling.md describes, or remove "
        "spec.scaling.autoscaling.",
    )
    KEDA_MISSING = AUTOSCALED.row(
        "KedaMissing",
        "KEDA does not work on the service's ScaledObject: its CRD scaledobjects.keda.sh is not installed, the "
        "operator has no right to it, or KEDA's own operator does not run.",
        "Install KEDA and see that its operator runs; where it does, install the operator's chart with "
        "autoscaling.enabled=true, which grants the right.",
        look="`kubectl get crd scaledobjects.keda.sh`; `kubectl get pods -n keda`; `kubectl describe scaledobject "
        "NAME`.",
        ends=Ends.OUTSIDE,
    )
    REPLICAS_STATED = AUTOSCALED.row(
        "ReplicasStated",
        "A manifest states spec.scaling.replicas beside spec.scaling.autoscaling: each time that it is applied it "
        "would reset the number that the autoscaler wrote. So the service is not autoscaled.",
        "Remove replicas from the manifest that the message names and apply it again.",
        look="`kubectl get llms NAME -o yaml --show-managed-fields`: who applied f:replicas.",
    )
    QUOTA_BELOW_MAXIMUM = AUTOSCALED.row(
        "QuotaBelowMaximum",
        "Replicas follow the load, and a ResourceQuota of the namespace ends before "
        "spec.scaling.autoscaling.maxReplicas.",
        "Have the quota that the message names raised, or lower maxReplicas.",
        look="`kubectl describe resourcequota` of the namespace.",
        ends=Ends.OUTSIDE,
    )
    AUTOSCALER_CONFLICT = AUTOSCALED.row(
        "AutoscalerConflict",
        "Another autoscaler or another ScaledObject scales this service, so that KEDA does not.",
        "Delete the HorizontalPodAutoscaler, ScaledObject or annotation that the message names, or remove "
        "spec.scaling.autoscaling.",
        look="`kubectl get hpa,scaledobjects` of the namespace.",
        ends=Ends.OUTSIDE,
    )
    SCALER_UNAVAILABLE = AUTOSCALED.row(
        "ScalerUnavailable",
        "KEDA gets no number of replicas from the scaler, or cannot set it. Replicas are not lowered meanwhile.",
        "See that the scaler's pods run, that KEDA may reach them, and that the certificates of both sides are of the "
        "same authority; docs/serving/scaling.md has the steps.",
        look="`kubectl describe scaledobject,hpa` of the namespace; the logs of the scaler (the Deployment that ends "
        "in -activator) and of KEDA's operator.",
        ends=Ends.OUTSIDE,
    )
    HOLDING_UNAVAILABLE = AUTOSCALED.row(
        "HoldingUnavailable",
        "Requests could not be held while no replica runs, so one replica stays although no requests come.",
        "Remove the cause that the message names; docs/serving/scale-to-zero.md has the steps. Set "
        "spec.scaling.autoscaling.minReplicas to 1 if a replica is to stay.",
        look="`kubectl get endpointslices -l kubernetes.io/service-name=NAME`; the pods and logs of the Deployment "
        "whose name ends in -activator.",
        ends=Ends.OUTSIDE,
    )
    ROUTING_DISABLED = ROUTED.row(
        "RoutingDisabled",
        "spec.routing asks for a router, and this operator is installed without one.",
        "Install the chart with routing.enabled=true, as docs/serving/routing.md describes, or remove spec.routing.",
    )
    ROUTER_NOT_READY = ROUTED.row(
        "RouterNotReady",
        "No pod of the router is ready. Requests go to the replicas past it, and need no router.",
        "Look at the router's pods: a quota, an image that cannot be pulled, or no room. A pod is ready once it has a "
        "replica.",
        ends=Ends.OUTSIDE,
    )
    ROUTER_OUTDATED = ROUTED.row(
        "RouterOutdated",
        "New pods of the router, as spec.routing and the installation ask for them, do not come. Earlier ones route on "
        "as they were made to, also by an earlier policy.",
        "Look at the router's pods: a quota, an image that cannot be pulled, or no room; or undo the change of "
        "spec.routing.",
        ends=Ends.OUTSIDE,
    )
    ROUTER_REFUSED = ROUTED.row(
        "RouterRefused",
        "The router's Deployment, budget or Service cannot be made.",
        "Remove the cause that the message names; the operator tries again each minute.",
        ends=Ends.OUTSIDE,
    )
    GATEWAY_DISABLED = ROUTED.row(
        "GatewayDisabled",
        "spec.endpoint.gateway or spec.routing asks for a Gateway, and this operator is installed without.",
        "Install the chart with gateway.enabled=true, as docs/serving/gateway.md describes, or remove the field.",
    )
    GATEWAY_API_MISSING = ROUTED.row(
        "GatewayAPIMissing",
        "A kind that a Gateway needs cannot be listed: its CRD is not installed, or the operator has no right to it.",
        "Install the CRDs of the Gateway API and, for a pool, of its inference extension; install the chart with "
        "gateway.enabled=true.",
        look="`kubectl get crd httproutes.gateway.networking.k8s.io inferencepools.inference.networking.k8s.io`.",
        ends=Ends.OUTSIDE,
    )
    ROUTE_REFUSED = ROUTED.row(
        "RouteRefused",
        "The HTTPRoute or the InferencePool cannot be made.",
        "Remove the cause that the message names; the operator tries again each minute.",
        ends=Ends.OUTSIDE,
    )
    ROUTE_TAKEN = ROUTED.row(
        "RouteTaken",
        "Another LLMService has some of these hosts and model names at this Gateway already.",
        "Choose other hostnames or another name of the model, or remove them there; the operator tries again each "
        "minute.",
        ends=Ends.OUTSIDE,
    )
    ROUTE_NOT_ACCEPTED = ROUTED.row(
        "RouteNotAccepted",
        "The Gateway does not take the HTTPRoute or the InferencePool, or has not said so yet.",
        "See what its controller says of them: a listener admits no routes of this namespace or has other hosts, the "
        "Gateway is not there, or the endpoint picker's Service is missing.",
        ends=Ends.OUTSIDE,
    )
    INTERNAL_ERROR = INTERNAL.row(
        "InternalError",
        "The operator failed on an internal error while it handled this service; what serves keeps serving.",
        "Report it, with the operator's log lines about this service. The operator tries again with back-off; "
        "undoing the last edit may avoid the error.",
    )
    QUARANTINED = INTERNAL.row(
        "Quarantined",
        "Two operator processes in a row ended abnormally while they handled this service and no other, so it is not "
        "handled any more; what serves keeps serving.",
        "Report it, with the operator's log from before its restarts. A change of the spec or another version of the "
        "operator has it tried again, and so does a new pod of the operator.",
        look="`kubectl -n llmservice-system logs deployment/llmservice-operator --previous`; the restarts of the "
        "operator's pod and the reason of its last termination.",
    )
    VALID = FINE.row(
        "Valid", "The spec is valid and nothing else owns the names that the service needs.", "Nothing to do."
    )
    ROLLED_OUT = FINE.row("RolledOut", "Every replica runs the current generation and answers.", "Nothing to do.")
    REPLICAS_READY = FINE.row("ReplicasReady", "At least one replica answers.", "Nothing to do.")
    PROGRESSING = FINE.row(
        "Progressing",
        "A rollout is under way and its pods are being made or replaced.",
        "Wait; the message says which step it is at.",
    )
    STARTING = FINE.row(
        "Starting",
        "Pods run and the model is being fetched or loaded.",
        "Wait; the message says what the pod is doing. Loading a large model takes minutes.",
        look="`status.progress`.",
    )
    STARTING_SLOWLY = FINE.row(
        "StartingSlowly",
        "A pod takes longer than such a start usually does, and is still making progress. This is no failure.",
        "Wait. The next start is shorter where the model does not have to be fetched again: give spec.model.cache.",
        look="`status.progress`: what it is doing; the message says how long it usually takes.",
    )
    SCALED_TO_ZERO = FINE.row(
        "ScaledToZero",
        "spec.scaling.replicas is 0, so nothing serves.",
        "Set spec.scaling.replicas to 1 or more, or `kubectl scale llms/NAME --replicas=1`.",
    )
    PAUSED = FINE.row(
        "Paused",
        "spec.paused is true: the operator changes and repairs nothing.",
        "Set spec.paused to false to have the spec carried out again.",
    )
    AUTOSCALING = FINE.row(
        "Autoscaling",
        "KEDA sets spec.scaling.replicas by the load, within the bounds of spec.scaling.autoscaling.",
        "Nothing to do.",
    )
    ATTACHED = FINE.row(
        "Attached",
        "The Gateway takes requests for this service.",
        "Nothing to do.",
    )
    ROUTING = FINE.row(
        "Routing",
        "Prompts are routed: the Service leads to the router's pods.",
        "Nothing to do.",
    )
    SCALED = FINE.row(
        "Scaled",
        "The autoscaler changed spec.scaling.replicas. Seen in Events only.",
        "Nothing to do.",
        look="The message has both numbers and the load; `kubectl describe scaledobject,hpa` of the namespace.",
    )
    IDLE = FINE.row(
        "Idle",
        "No requests come, so no replica runs and no accelerator is held. The next request is held and starts a "
        "replica, which answers it.",
        "Nothing to do. Set spec.scaling.autoscaling.minReplicas to 1 to keep a replica.",
        look="`status.endpoint.url`: a POST there starts a replica; the activators' metrics count what is held.",
    )
    DELETING = FINE.row("Deleting", "The LLMService is being deleted.", "Nothing to do.")
