{{- /*
The operator's rights in the namespaces that it serves. tests/e2e/test_rbac.py compares them with an audit log.
Only the garbage collector deletes Deployments and Services, through their owner.
*/ -}}
{{- define "llmservice.rules" -}}
- apiGroups: [llmservice.dev]
  resources: [llmservices]
  verbs: [get, list, watch]
- apiGroups: [llmservice.dev]
  resources: [llmservices/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# NAME-adapters, the lists of LoRA adapters. They are not read: a dry run returns the metadata with the owner.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create, patch, delete]
# NAME-inspect-HASH, which inspects a model before it starts and is deleted with its pod afterwards.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
# Patched is one annotation, before replicas are removed: which pods go first; with groups.enabled also the scheduling
# gate of pods of a group, which goes. admissionPolicies.operator allows no more.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
# Ready means that requests reach the pods. Without this right a ready pod is assumed to get them.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  {{- if or .Values.autoscaling.enabled .Values.routing.enabled }}
  # Written are NAME-activator-ipv4 and -ipv6, of services without a replica, and NAME-replicas-ipv4 and -ipv6, of services
  # without a ready router. admissionPolicies.operator allows no others.
  verbs: [get, list, watch, create, patch, delete]
  {{- else }}
  # Deleted are those that are left of autoscaling: their activators are gone. admissionPolicies.operator allows no others.
  verbs: [list, watch, delete]
  {{- end }}
# Events are listed of single pods without a started container, or whose probes get no response.
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]
{{- if .Values.groups.enabled }}
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, list, watch, create, patch]
# NAME, which keeps what the pods of a replica tell each other to themselves.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- if .Values.dynamicResources.enabled }}
# NAME-HASH, the claim of devices that spec.accelerator.claim asks for.
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- if .Values.gateway.enabled }}
# NAME, which leads requests of a Gateway to the Service or, by an endpoint picker, to the replicas.
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- if or .Values.autoscaling.enabled .Values.routing.enabled }}
# On OpenShift a slice with addresses of pods is refused without this right; elsewhere nothing asks for it.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices/restricted]
  verbs: [create]
{{- end }}
{{- if .Values.autoscaling.enabled }}
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [get, list, watch, create, patch, delete]
# Whether a quota of the namespace ends before maxReplicas.
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [list]
{{- end }}
{{- end -}}
