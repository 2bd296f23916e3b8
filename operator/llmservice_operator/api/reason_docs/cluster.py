"""What Kubernetes itself stands in the way with: places for pods, images, volumes, nodes."""

from llmservice_operator.api.reason_docs.doc import Group, ReasonDoc

PLACE = Group(
    "No pod can be made or placed",
    intro="",
    look="`kubectl describe pod -l llmservice.dev/service=NAME`; the message has the scheduler's own words.",
    docs={
        "InsufficientGPUs": ReasonDoc(
            "No node has as many free GPUs as a pod of this service needs. The message says how many are free, of "
            "which product, and who holds the others: services of its namespace by name, pods of other namespaces as a "
            "number; it is brought up to date once a minute.",
            "Free GPUs, add nodes with them, or ask for less: spec.parallelism, spec.scaling.replicas, or another "
            "spec.accelerator.products.",
            look="The message; `kubectl describe nodes` lists who asks for how much.",
        ),
        "InsufficientResources": ReasonDoc(
            "No node has as much free CPU, memory, storage, or as many free places for pods, as a pod of this "
            "service asks for.",
            "Ask for less in spec.runtime.resources, free some, or add nodes.",
        ),
        "UntoleratedTaint": ReasonDoc(
            "The nodes that could take the pod carry a taint that it does not tolerate, or their node controller "
            "does: a node that is not reachable, not ready, or short of memory or disk is tainted too.",
            "Add a toleration in spec.podTemplate.spec.tolerations, or take the taint off (`kubectl taint nodes NODE "
            "KEY-`).",
            look="`kubectl describe nodes`: their Taints.",
        ),
        "NoMatchingNode": ReasonDoc(
            "No node matches the pod's node selector, affinity or spread constraints, among them the GPU product "
            "that the spec asks for.",
            "Correct spec.podTemplate.spec.nodeSelector, spec.podTemplate.spec.affinity or spec.accelerator.products, "
            "or label a node.",
            look="`kubectl get nodes --show-labels`, beside the pod's nodeSelector and affinity.",
        ),
        "VolumeUnavailable": ReasonDoc(
            "A volume cannot be mounted: its claim does not exist or is not bound, or what it is made of (a Secret, a "
            "key of it, a ConfigMap) is missing or cannot be reached.",
            "Create or repair what the message names, or correct the reference to it: spec.model.uri, "
            "spec.model.cache, spec.endpoint.apiKeySecretRef or spec.podTemplate.spec.volumes.",
            look="`kubectl get pvc`, and `kubectl describe pvc CLAIM`, which says why it is not bound; of a Secret, "
            "its name and its keys.",
        ),
        "Unschedulable": ReasonDoc(
            "The scheduler finds no node with room for a pod; the message quotes it.",
            "Free or add nodes with the accelerator that is asked for, or change spec.accelerator, spec.parallelism, "
            "spec.runtime.resources or the placement fields in spec.podTemplate.spec.",
        ),
        "QuotaExceeded": ReasonDoc(
            "A ResourceQuota of the namespace refuses the pods.",
            "Ask for less in spec.runtime.resources, or have the quota that the message names raised.",
            look="`kubectl describe resourcequota`.",
        ),
        "AdmissionRefused": ReasonDoc(
            "The API server or an admission webhook refuses an object that the service needs; the message quotes it.",
            "Change the field or the policy that the message names.",
            look="The message: it names the policy or webhook.",
        ),
        "AdmissionUnavailable": ReasonDoc(
            "An admission webhook that has to be asked before a pod is made does not answer; what serves goes on.",
            "Bring back the webhook that the message names, or have its owner set failurePolicy: Ignore.",
            look="`kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations`.",
        ),
    },
)

POD = Group(
    "A pod does not get going",
    intro="",
    look="`kubectl describe pod -l llmservice.dev/service=NAME`; the message has the kubelet's own words.",
    docs={
        "ImageNotFound": ReasonDoc(
            "The registry has no such image or tag, or the node may not pull and does not have it.",
            "Correct spec.runtime.image, or its spec.runtime.imagePullPolicy where that is Never.",
        ),
        "ImagePullDenied": ReasonDoc(
            "The registry does not give this image to the cluster. Some registries say so of images that do not exist.",
            "Name a Secret with a login for it in spec.runtime.imagePullSecrets, and check the name in "
            "spec.runtime.image.",
            look=(
                "The message, and the Secrets in spec.runtime.imagePullSecrets: of which registry, and in this "
                "namespace?"
            ),
        ),
        "ImagePullFailed": ReasonDoc(
            "A node cannot pull the runtime image.",
            "Check spec.runtime.image, and spec.runtime.imagePullSecrets where the registry asks for a login.",
        ),
        "ContainerConfigInvalid": ReasonDoc(
            "The kubelet cannot set a container up: a Secret, ConfigMap, key or volume that it needs is missing.",
            "Create what the message names, or correct the reference to it in the spec.",
            look="The message; `kubectl get secrets,configmaps` of the namespace.",
        ),
        "InitContainerFailed": ReasonDoc(
            "A container that runs before the server ended with an error.",
            "Correct it in spec.podTemplate.spec.initContainers; the one named `runtime` is the operator's, whose "
            "image the node must be able to run.",
            look="`kubectl logs POD -c CONTAINER --previous`.",
        ),
        "PodSandboxFailed": ReasonDoc(
            "The node cannot set up the pod's sandbox or network.",
            "It is tried again; if it stays, look at the node's container runtime and network plugin.",
        ),
    },
)

NODE = Group(
    "The node or the network",
    intro="",
    look="`kubectl get nodes`, `kubectl describe node NODE`.",
    docs={
        "NodeLost": ReasonDoc(
            "The node of a pod no longer reports to the cluster, so that the pod counts as not ready; its requests "
            "fail or hang.",
            "Bring the node back or delete it (`kubectl delete node NODE`). After its tolerations' time, five "
            "minutes by default, the pod is made anew elsewhere.",
            look="`kubectl get nodes`: is it NotReady? Then the node itself, and its way to the API server.",
        ),
        "Evicted": ReasonDoc(
            "The node put the pod out because it ran short of disk or memory; another one is made.",
            "Free space on the node, or ask for what the pod really needs in spec.runtime.resources, "
            "ephemeral-storage included.",
            look="`kubectl describe node NODE`: the conditions DiskPressure and MemoryPressure.",
        ),
        "PodRejected": ReasonDoc(
            "The node refused the pod after the scheduler had chosen it; another one is made.",
            "Look at the node's kubelet and device plugin; a GPU that its plugin no longer offers is the usual cause.",
        ),
        "ProbeBlocked": ReasonDoc(
            "The server runs, and the kubelet's probes get no answer from its port 8081: a NetworkPolicy, a firewall "
            "rule or a proxy on the node keeps them off, or the node has no CPU time left for the pod.",
            "Let the node reach port 8081 of the pod. The evidence is what the kubelet says of its probe.",
            look=(
                "`kubectl describe pod POD`: the Events named Unhealthy; `kubectl get networkpolicies`; the node's "
                "firewall."
            ),
        ),
        "NoEndpoints": ReasonDoc(
            "Pods are ready, and the Service has no address for them, so that its clients are refused.",
            "Look at who changed the Service's selector, and at the cluster's endpoint slice controller.",
            look="`kubectl get endpointslices -l kubernetes.io/service-name=NAME`, beside `kubectl get pods -o wide`.",
        ),
    },
)
