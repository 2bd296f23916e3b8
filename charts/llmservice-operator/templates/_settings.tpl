{{- /* The operator's settings file: its keys are the operator's, its words are the chart's values. */ -}}
{{- define "llmservice.settings" -}}
namespaces: {{ toJson .Values.watch.namespaces }}
leaderElection:
  leaseName: {{ include "llmservice.fullname" . }}
  leaseNamespace: {{ .Release.Namespace }}
health:
  port: {{ .Values.ports.health }}
metrics:
  port: {{ .Values.ports.metrics }}
logging: {{- toYaml .Values.logging | nindent 2 }}
services:
  operatorImage: {{ include "llmservice.image" . | quote }}
  imagePullPolicy: {{ .Values.services.imagePullPolicy }}
  defaultGpuImage: {{ .Values.services.gpuImage | quote }}
  defaultCpuImage: {{ .Values.services.cpuImage | quote }}
{{- end -}}
