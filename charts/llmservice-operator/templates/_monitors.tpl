{{/* A PodMonitor of all pods with a label of the operator, up to its endpoints: `of` is the label's name, `root` the chart. */}}
{{- define "llmservice.podMonitor" }}
---
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ include "llmservice.fullname" .root }}-{{ .of }}s
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "llmservice.labels" .root | nindent 4 }}
    {{- with .root.Values.metrics.podMonitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchExpressions:
      - {key: llmservice.dev/{{ .of }}, operator: Exists}
  namespaceSelector:
    {{- if .root.Values.watch.namespaces }}
    matchNames: {{- toYaml (uniq .root.Values.watch.namespaces) | nindent 6 }}
    {{- else }}
    any: true
    {{- end }}
{{- end }}
