"""An edit that is held back: what serves is maintained as it was made, and the status says what holds back the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from llmservice_operator.api.service import LLMService
from llmservice_operator.build import inspection
from llmservice_operator.build.deployment import Strategy
from llmservice_operator.build.effective import effective, gpus
from llmservice_operator.build.meta import selector_text
from llmservice_operator.build.service import endpoint
from llmservice_operator.build.settings import Settings
from llmservice_operator.build.template import pod_template
from llmservice_operator.decide.children import applies, finished_jobs, is_pending, needless
from llmservice_operator.decide.decision import Apply, Decision
from llmservice_operator.decide.desired import DesiredChild, maintained, with_hash
from llmservice_operator.decide.fit.assess import FitAssessment
from llmservice_operator.decide.inputs import Inputs
from llmservice_operator.decide.ownership import Ownership, name_conflicts, ownership
from llmservice_operator.decide.report import refuse, report, subject_of
from llmservice_operator.decide.rollout.selection import own_revisions
from llmservice_operator.decide.rollout.strategy import current_strategy, first
from llmservice_operator.decide.zero import needless_slices
from llmservice_operator.observe.observed import Observed
from llmservice_operator.observe.rollout.status_rollout import stored_rolling
from llmservice_operator.observe.status.verdict import Verdict

Json = Mapping[str, Any]


def hold_back(inputs: Inputs, service: LLMService, fit: FitAssessment) -> Decision:
    """Nothing of the revision that is asked for is made: `fit.hold` says why."""
    observed, previous = inputs.observed, service.status
    subject, live = subject_of(service), observed.deployment
    serving = _serving(service, observed, inputs.settings)
    children = [*(inputs.zero.slices or ()), *serving] if serving else []
    problems = name_conflicts(service, observed, {child.id for child in children})
    if problems:
        return refuse(inputs, subject, problems, service.spec.scaling.replicas)
    apply = tuple(applies(service, observed, children))
    verdict = Verdict(
        obstacle=fit.hold,
        is_pending=is_pending(apply),
        replicas=service.spec.scaling.replicas,
        revision=live.revision if live is not None else "",
        rolling=replace(stored_rolling(previous.get("rollout") or {}), strategy=_strategy(service, observed)),
        selector=selector_text(service.name),
        gpus=gpus(service),
        endpoint=endpoint(service) | (_served_names(previous) if live is not None else {}),
        effective=(live and previous.get("effective")) or effective(service, pod_template(service, inputs.settings)),
        fitness=fit.fitness,
        plan=fit.plan,
        model=fit.model,
        adapters=tuple(item["name"] for item in previous.get("adapters") or ()),
    )
    inspect = tuple(_inspect(inputs, service, fit))
    return report(
        inputs,
        subject,
        verdict,
        desired=tuple(child.manifest for child in children),
        apply=(*inspect, *apply),
        prune=(
            *needless_slices(service, observed, inputs.zero.slices),
            *needless(service, observed, inputs.settings),
            *finished_jobs(service, observed, fit.job),
        ),
        requeue_after=fit.requeue_after,
    )


def _serving(service: LLMService, observed: Observed, settings: Settings) -> list[DesiredChild]:
    """The children of the revision that runs, as its record has it; none where nothing of this service's runs."""
    live = observed.deployment
    if live is None or ownership(live, service) is not Ownership.OURS:
        return []
    record = next((r for r in own_revisions(service, observed) if r.label == live.revision), None)
    listed = observed.service.adapters if observed.service is not None else None
    template = record.data()["template"] if record is not None else None
    return maintained(service, template, _strategy(service, observed), listed, settings)


def _strategy(service: LLMService, observed: Observed) -> Strategy:
    return first(service).strategy if observed.deployment is None else current_strategy(service, observed.deployment)


def _served_names(previous: Json) -> dict[str, Any]:
    """Those that pods were started with; an edit of them waits."""
    names = (previous.get("endpoint") or {}).get("modelNames")
    return {"modelNames": names} if names else {}


def _inspect(inputs: Inputs, service: LLMService, fit: FitAssessment) -> Iterator[Apply]:
    """The Job that inspects the model; what it is made of can never be changed, and it does not last."""
    if fit.job is not None and inputs.observed.inspection_job(fit.job) is None:
        child = with_hash(inspection.job(service, inputs.settings))
        yield Apply(child.manifest, "the model is to be planned", is_optional=True, input_hash=child.input_hash)
