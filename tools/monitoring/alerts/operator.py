"""Alerts about the operator and the activators themselves."""

from __future__ import annotations

from monitoring.rules import Alert, Group, Severity

_JOB = 'job="${job}",namespace="${namespace}"'
_OURS = 'job="${job}"'
_LOGS = "Run: kubectl logs -l app.kubernetes.io/name=${name} -n ${namespace} --prefix --tail=200"

GROUP = Group(
    "llmservice.operator",
    (
        Alert(
            name="LLMServiceOperatorNotLeading",
            when="no process of the operator acts, or none is scraped",
            # Whoever has the Lease and may not watch yet acts on nothing.
            expr=f"sum(llmservice_leader{{{_JOB}}}) == 0 or absent(llmservice_leader{{{_JOB}}}) "
            f'or sum(llmservice_stage{{{_JOB},stage="acting"}}) == 0',
            lasts="5m",
            severity=Severity.CRITICAL,
            summary="No operator process acts.",
            description="What serves goes on serving, and nothing is started, repaired or updated. "
            "Run: kubectl get pods,leases -n ${namespace}",
        ),
        Alert(
            name="LLMServiceOperatorReconcileErrors",
            when="more than a tenth of the operator's passes fail",
            expr=f'sum(rate(llmservice_reconcile_duration_seconds_count{{{_JOB},result="error"}}[15m])) '
            f"/ sum(rate(llmservice_reconcile_duration_seconds_count{{{_JOB}}}[15m])) > 0.1",
            lasts="15m",
            severity=Severity.WARNING,
            summary="{{ $value | humanizePercentage }} of the operator's passes fail.",
            description=f"The API server does not answer, or refuses. {_LOGS}",
        ),
        Alert(
            name="LLMServiceOperatorInternalErrors",
            when="an unexpected exception in the operator within 15 minutes",
            # Each part is there from 0 on.
            expr=f"sum by (part) (increase(llmservice_internal_errors_total{{{_JOB}}}[15m])) > 0",
            severity=Severity.WARNING,
            summary="An unexpected exception in the operator, in {{ $labels.part }}.",
            description="A defect of the operator; other services are not affected. Its log has the traceback. "
            f"{_LOGS}",
        ),
        Alert(
            name="LLMServiceOperatorWatchStale",
            when="a watch of the operator is broken off, or never began",
            # `namespace` of those is the watched one; of llmservice_leader, it is the operator's.
            expr=f"max by (job, namespace, pod) (llmservice_leader{{{_JOB}}} and on (instance) "
            f"(llmservice_watch_broken{{{_OURS}}} > 0 or llmservice_watch_synced{{{_OURS}}} == 0))",
            lasts="5m",
            severity=Severity.CRITICAL,
            summary="The operator does not see all changes.",
            description="It has no right to a watch, or the API server does not answer it. Services may be stale. "
            "Run: kubectl get --raw /api/v1/namespaces/${namespace}/pods/{{ $labels.pod }}:${healthPort}/proxy/readyz",
        ),
        Alert(
            name="LLMServiceCertificateExpires",
            when="a certificate of the operator or the activators expires within `certificateDays` days",
            expr="min by (namespace, job, certificate) (llmservice_certificate_expiry_timestamp_seconds) - time() "
            "< ${certificateDays} * 86400",
            lasts="15m",
            severity=Severity.WARNING,
            summary="The certificate `{{ $labels.certificate }}` of {{ $labels.namespace }}/{{ $labels.job }} "
            "expires in {{ $value | humanizeDuration }}.",
            description="scaler: KEDA refuses the activators then, and replicas no longer follow the load. metrics: "
            "Prometheus may refuse the operator's metrics then. Renewed Secrets are read within two minutes.",
        ),
    ),
)
