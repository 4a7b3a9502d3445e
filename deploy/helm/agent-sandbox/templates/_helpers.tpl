{{- define "agent-sandbox.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "agent-sandbox.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{ include "agent-sandbox.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- /* The metadata of an object in the controller's namespace: context, name. */ -}}
{{- define "agent-sandbox.metadata" -}}
{{- $context := index . 0 -}}
name: {{ index . 1 }}
namespace: {{ $context.Values.namespace.name }}
labels:
  {{- include "agent-sandbox.labels" $context | nindent 2 }}
{{- end }}

{{- /* Binds a role to the controller: context, kind of the role, its name. */ -}}
{{- define "agent-sandbox.grant" -}}
{{- $context := index . 0 -}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ index . 1 }}
  name: {{ index . 2 }}
subjects:
- kind: ServiceAccount
  name: agent-sandbox-controller
  namespace: {{ $context.Values.namespace.name }}
{{- end }}

{{- /* A flag for every key below `controller` that has no meaning of its own here. */ -}}
{{- define "agent-sandbox.flags" -}}
{{- range $key, $value := omit .Values.controller "leaderElect" "extensions" "extraArgs" }}
{{- if not (kindIs "invalid" $value) }}
- {{ printf "--%s=%s" (kebabcase $key) (kindIs "string" $value | ternary $value (toJson $value)) | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The first is what the NetworkPolicies of templates let in. */ -}}
{{- define "agent-sandbox.router.labels" -}}
app: sandbox-router
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/name: sandbox-router
app.kubernetes.io/component: sandbox-router
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}
