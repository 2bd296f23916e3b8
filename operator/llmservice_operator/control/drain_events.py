"""Reports streams that a pod's end cut short, with one Event a pod and a counter: the status shows the present only."""

from __future__ import annotations

from llmservice_operator.api.reasons import Reason
from llmservice_operator.control.context import Context
from llmservice_operator.control.status_writer import write_event
from llmservice_operator.control.watch.kinds import ParentFacts, key_of
from llmservice_operator.decide.decision import Event
from llmservice_operator.kube.resources import POD
from llmservice_operator.observe.projections.pods import PodFacts, replicas
from llmservice_operator.process.log import ObjectLogger


async def report_drains(parent: ParentFacts, ctx: Context, log: ObjectLogger) -> None:
    """Report each pod once: while it is still there after its server ended, or when it is gone already."""
    key = key_of(parent)
    memory = ctx.memory(key, parent.uid)
    found = [*ctx.cache.of_service(key).get(POD.kind, {}).values(), *memory.gone]
    memory.gone.clear()
    pods = [pod for pod in replicas(found) if pod.cut]
    before, memory.drained = memory.drained, frozenset(pod.uid for pod in pods)
    for pod in (pod for pod in pods if pod.uid not in before):
        ctx.metrics.add_streams_ended(key, pod.cut)
        await write_event(Event("Warning", Reason.STREAMS_ENDED, _message(pod)), parent, ctx, log)


def _message(pod: PodFacts) -> str:
    streams = "1 stream" if pod.cut == 1 else f"{pod.cut} streams"
    return f"Pod {pod.name} ended {streams} that outlived the drain timeout. {Reason.STREAMS_ENDED.remedy}"
