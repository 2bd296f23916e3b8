{{- /*
What the operator may do where it serves LLMServices. tests/e2e/test_rbac.py holds it against an audit log.
Deployments and Services are deleted by the garbage collector, through their owner, and by nobody else.
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
# NAME-adapters, the lists of LoRA adapters. They are not read: whose one is tells a dry run that answers metadata.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create, patch, delete]
# NAME-inspect-HASH, which looks at a model before it starts and is deleted, with its pod, when it is known.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# Ready means that requests reach the pods. Without this right a ready pod is taken to get some.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
# Events are listed of single pods that stay on their node without a container, or whose probes get no answer.
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]
{{- end -}}
