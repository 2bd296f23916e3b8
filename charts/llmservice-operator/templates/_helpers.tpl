{{- define "llmservice.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- /* At most 50 characters, so that "-activator" and a ReplicaSet's suffix still fit. */ -}}
{{- define "llmservice.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "llmservice.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "llmservice.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Cluster-scoped names carry the namespace: releases of one name in two namespaces must not collide. */ -}}
{{- define "llmservice.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "llmservice.fullname" .) -}}
{{- end -}}

{{- define "llmservice.selectorLabels" -}}
app.kubernetes.io/name: {{ include "llmservice.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "llmservice.labels" -}}
{{ include "llmservice.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end -}}

{{- define "llmservice.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "llmservice.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: name the service account to use, or set serviceAccount.create to true" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "llmservice.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- /* The Deployment that is KEDA's scaler, and everything of it. */ -}}
{{- define "llmservice.activatorName" -}}
{{- include "llmservice.fullname" . }}-activator
{{- end -}}

{{- /* Another name than the operator's pods have: its selectors must not find these. */ -}}
{{- define "llmservice.activatorSelectorLabels" -}}
app.kubernetes.io/name: {{ include "llmservice.name" . }}-activator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "llmservice.activatorLabels" -}}
{{ include "llmservice.activatorSelectorLabels" . }}
app.kubernetes.io/component: activator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end -}}

{{- define "llmservice.activatorServiceAccountName" -}}
{{- default (include "llmservice.activatorName" .) .Values.autoscaling.serviceAccountName -}}
{{- end -}}

{{- /* What KEDA connects to. The certificate in autoscaling.tls.secretName is for this name without the port. */ -}}
{{- define "llmservice.scalerAddress" -}}
{{ include "llmservice.activatorName" . }}.{{ .Release.Namespace }}.svc:9443
{{- end -}}

{{- /* The ports of activators, one for each service that may have no replica. */ -}}
{{- define "llmservice.firstHoldingPort" -}}10240{{- end -}}
{{- define "llmservice.lastHoldingPort" -}}32767{{- end -}}

{{- /* Cluster-scoped, so its name carries the namespace. */ -}}
{{- define "llmservice.scalerAuthentication" -}}
{{ .Release.Namespace }}.{{ include "llmservice.activatorName" . }}
{{- end -}}

{{- /* The web page, and everything of it. Another name than the operator's pods have: its selectors must not find these. */ -}}
{{- define "llmservice.uiName" -}}
{{- include "llmservice.fullname" . }}-ui
{{- end -}}

{{- define "llmservice.uiSelectorLabels" -}}
app.kubernetes.io/name: {{ include "llmservice.name" . }}-ui
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "llmservice.uiLabels" -}}
{{ include "llmservice.uiSelectorLabels" . }}
app.kubernetes.io/component: ui
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end -}}

{{/* Of cluster DNS, for NetworkPolicies, which count the port of the pod: OpenShift's DNS pods listen on 5353. */}}
{{- define "llmservice.dnsPorts" -}}
{{- range $port := list 53 5353 }}
- {port: {{ $port }}, protocol: UDP}
- {port: {{ $port }}, protocol: TCP}
{{- end }}
{{- end }}
