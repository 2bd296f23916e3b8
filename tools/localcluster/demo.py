"""From nothing to an answered chat completion: the cluster, the images, the chart, a service, a question."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from llmservice_api.constants import SERVICE_LABEL

from localcluster.errors import ClusterError
from localcluster.install import CPU_IMAGE, OPERATOR_IMAGE, Target, install, local_target
from localcluster.paths import ClusterPaths, cache_root
from localcluster.progress import Progress, Step
from localcluster.tinymodel.pairs import PAIRS

NAMESPACE = "default"
CLIENT = "llmservice-demo-client"
READY_WITHIN = 900.0
QUESTION = PAIRS[0][0]

ASK = """
import json, sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode(), {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=60) as response:
    print(json.load(response)["choices"][0]["message"]["content"])
"""


def demo(target: Target, progress: Progress, *, operator_image: str, cpu_image: str) -> None:
    """Installs, applies the example, waits, asks. The service is left running, for the user to try."""
    install(target, progress, operator_image=operator_image, cpu_image=cpu_image)
    example = target.paths.root / "examples" / "tiny-chat.yaml"
    name: str = yaml.safe_load(example.read_text())["metadata"]["name"]
    target.kubectl("apply", "-n", NAMESPACE, "-f", str(example))
    with progress.step(f"llmservice/{name}") as step:
        wait_until_ready(target, name, step, progress.line)
    answer = ask(target, name, operator_image)
    table = target.kubectl("get", "llms", "-n", NAMESPACE)
    print(f"\n> {QUESTION}\n{answer}\n\n$ kubectl get llms\n{table}")
    print(what_next(target, name))


def wait_until_ready(
    target: Target, name: str, step: Step, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> None:
    """Shows each change of what the service waits for; ends early when its status says that it has failed."""
    deadline = clock() + READY_WITHIN
    while clock() < deadline:
        service = json.loads(target.kubectl("get", "llms", name, "-n", NAMESPACE, "-o", "json"))
        status = service.get("status", {})
        ready = condition(service, "Ready")
        if ready.get("status") == "True":
            return
        if "failure" in status:
            failure = status["failure"]
            raise ClusterError(f"{failure['reason']}: {failure['message']}", failure["remedy"])
        detail = f"{ready.get('reason', 'waiting for the operator')}{engine_phase(target, name)}"
        if detail != step.detail:
            log(f"{step.title}: {detail}")
            step.detail = detail
        time.sleep(1)
    raise ClusterError(f"llmservice/{name} is not ready after {READY_WITHIN:.0f} s", "Look: kubectl describe llms")


def condition(service: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of this type if it speaks of the current generation, else nothing."""
    for found in service.get("status", {}).get("conditions", []):
        if found["type"] == kind and found["observedGeneration"] == service["metadata"]["generation"]:
            held: Mapping[str, Any] = found
            return held
    return {}


def engine_phase(target: Target, name: str) -> str:
    """What the supervisor in the service's pod says it is doing, as far as it runs yet."""
    selector = f"{SERVICE_LABEL}={name}"
    pods = json.loads(target.kubectl("get", "pods", "-n", NAMESPACE, "-l", selector, "-o", "json"))["items"]
    for pod in pods:
        if "deletionTimestamp" in pod["metadata"]:
            continue
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}:8081/proxy/state"
        try:
            state = json.loads(target.kubectl("get", "--raw", path, timeout=10))
        except ClusterError:
            continue  # not there yet: the pod has no address, or its supervisor does not listen
        return f", engine: {state['phase']}"
    return ""


def ask(target: Target, name: str, image: str) -> str:
    """The answer to one chat completion, asked by a pod through the Service's DNS name."""
    body = {"model": name, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 200}
    url = f"http://{name}.{NAMESPACE}.svc/v1/chat/completions"
    container = {
        "name": "client",
        "image": image,
        "command": ["python", "-c", ASK, url, json.dumps(body)],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": CLIENT},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }
    target.kubectl("delete", "pod", CLIENT, "-n", NAMESPACE, "--ignore-not-found")
    target.kubectl("create", "-n", NAMESPACE, "-f", "-", stdin=json.dumps(pod))
    try:
        target.kubectl(
            "wait", "-n", NAMESPACE, f"pod/{CLIENT}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s"
        )
    except ClusterError as failed:
        logs = target.kubectl("logs", CLIENT, "-n", NAMESPACE)
        raise ClusterError(f"the endpoint did not answer: {logs.strip() or failed}") from failed
    answer = target.kubectl("logs", CLIENT, "-n", NAMESPACE).strip()
    target.kubectl("delete", "pod", CLIENT, "-n", NAMESPACE, "--wait=false")
    return answer


def what_next(target: Target, name: str) -> str:
    chosen = f" --context {target.context}" if target.context else ""
    setup = "" if target.context else '  eval "$(make -s cluster-env)"              # KUBECONFIG, kubectl and helm\n'
    clean = (
        f"  helm uninstall llmservice-operator -n llmservice-system --kube-context {target.context}"
        if target.context
        else "  make cluster-down                           # everything gone; a second `make demo` is fast"
    )
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": PAIRS[1][0]}], "temperature": 0})
    return (
        "Try next:\n"
        f"{setup}"
        f"  kubectl{chosen} port-forward service/{name} 8000:80 &\n"
        f"  curl -s localhost:8000/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'\n"
        f"  kubectl{chosen} explain llms.spec.batching\n"
        f'  kubectl{chosen} patch llms {name} --type=merge -p \'{{"spec":{{"batching":{{"maxNumSeqs":16}}}}}}\'\n'
        f"  kubectl{chosen} delete llms {name}\n"
        f"{clean}"
    )


def main(argv: Sequence[str], paths: ClusterPaths, environment: Mapping[str, str], progress: Progress) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m localcluster demo",
        description="From nothing to an answered chat completion, on the local cluster unless --context names yours.",
        epilog="examples: make demo; make demo KUBECONTEXT=dev OPERATOR_IMAGE=me/operator:1 CPU_IMAGE=me/vllm-cpu:1",
    )
    parser.add_argument("--context", help="a context of your own kubeconfig, instead of the local cluster")
    parser.add_argument("--operator-image", default=OPERATOR_IMAGE, help="an image that the cluster's nodes can pull")
    parser.add_argument("--cpu-image", default=CPU_IMAGE, help="likewise, built from runtime/Dockerfile.cpu")
    options = parser.parse_args(argv)
    if options.context:
        if options.operator_image == OPERATOR_IMAGE or options.cpu_image == CPU_IMAGE:
            raise ClusterError(
                "your cluster cannot pull this clone's local images",
                "Build operator/Dockerfile and runtime/Dockerfile.cpu, push them, and name them: "
                "make demo KUBECONTEXT=... OPERATOR_IMAGE=... CPU_IMAGE=...",
            )
        target = Target(paths, environment, options.context)
    else:
        from localcluster.bringup import bring_up  # only here: a cluster of the user's own needs no images
        from localcluster.cluster import Host

        bring_up(paths, Host(environment, cache_root(environment, Path.home()), progress))
        target = local_target(paths, environment)
    demo(target, progress, operator_image=options.operator_image, cpu_image=options.cpu_image)
    return 0
