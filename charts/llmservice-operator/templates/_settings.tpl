{{- /* The operator's settings file, from the chart's values. */ -}}
{{- define "llmservice.settings" -}}
namespaces: {{ toJson .Values.watch.namespaces }}
leaderElection:
  leaseName: {{ include "llmservice.fullname" . }}
  leaseNamespace: {{ .Release.Namespace }}
health:
  port: {{ .Values.ports.health }}
metrics:
  port: {{ .Values.ports.metrics }}
  authentication: {{ .Values.metrics.authentication }}
  {{- if .Values.metrics.tls.secretName }}
  tlsFolder: /etc/llmservice-metrics-tls
  {{- end }}
{{- if gt (int .Values.operator.shards) 1 }}
{{- fail (printf "operator.shards: 1, and not %v: one process serves 10,000 services; beyond, install one release for each set of namespaces (watch.namespaces), and set operator.shards to 1 (docs/install.md, Beyond one process)" .Values.operator.shards) }}
{{- end }}
operator: {{- toYaml (omit .Values.operator "shards") | nindent 2 }}
logging: {{- toYaml .Values.logging | nindent 2 }}
services:
  operatorImage: {{ include "llmservice.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- /* A null in the values removes the key, and the operator would use its own default. */}}
  {{- if not (hasKey .Values.services "runAsUser") }}
  runAsUser: null
  {{- end }}
  {{- if .Values.groups.enabled }}
  hasGroups: true
  {{- if not .Values.groups.networkPolicy }}
  hasGroupPolicy: false
  {{- end }}
  {{- if .Values.groups.nodeAutoscaler }}
  hasNodeAutoscaler: true
  {{- end }}
  {{- end }}
  {{- if .Values.dynamicResources.enabled }}
  hasDynamicResources: true
  {{- end }}
  {{- if .Values.gateway.enabled }}
  hasGateways: true
  modelHeader: {{ .Values.gateway.modelHeader | quote }}
  {{- end }}
  {{- if .Values.routing.enabled }}
  routerImage: {{ default (printf "llmservice-router:%s" .Chart.AppVersion) .Values.routing.image | quote }}
  routerCpu: {{ .Values.routing.cpu | quote }}
  routerMemory: {{ .Values.routing.memory | quote }}
  routerMemoryLimit: {{ .Values.routing.memoryLimit | quote }}
  {{- end }}
  {{- if .Values.autoscaling.enabled }}
  scalerAddress: {{ include "llmservice.scalerAddress" . }}
  scalerAuthentication: {{ include "llmservice.scalerAuthentication" . }}
  {{- end }}
  {{- /* An operator before this chart, whose pod restarts during the upgrade, refuses keys that it does not know. */}}
  {{- $services := .Values.services }}
  {{- range $key, $default := (dict "helperCpu" "50m" "helperMemory" "64Mi") }}
  {{- if eq (toString (get $services $key)) $default }}
  {{- $services = omit $services $key }}
  {{- end }}
  {{- end }}
  {{- toYaml $services | nindent 2 }}
{{- end -}}
