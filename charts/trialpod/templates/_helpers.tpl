{{- define "trialpod.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- /* 45 characters leave room for the suffixes of what is named after it. */}}
{{- define "trialpod.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" }}
{{- else if contains (include "trialpod.name" .) .Release.Name }}
{{- .Release.Name | trunc 45 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "trialpod.name" .) | trunc 45 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "trialpod.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "trialpod.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: trialpod
{{- end }}

{{- define "trialpod.selector" -}}
app.kubernetes.io/name: {{ include "trialpod.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trialpod.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "trialpod.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "trialpod.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end }}
{{- end }}

{{- define "trialpod.minioSecret" -}}
{{- default (printf "%s-minio" (include "trialpod.fullname" .)) .Values.minio.existingSecret }}
{{- end }}

{{- /* What the operator does in a namespace whose experiments it serves. */}}
{{- define "trialpod.rules" -}}
- apiGroups: [trialpod.dev]
  resources: [tuneexperiments]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [trialpod.dev]
  resources: [tunetrials]
  verbs: [get, list, watch, create]
- apiGroups: [trialpod.dev]
  resources: [tuneexperiments/status, tunetrials/status]
  verbs: [patch]
- apiGroups: [trialpod.dev]
  resources: [tuneexperiments/finalizers, tunetrials/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete, deletecollection]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [trialpod-ca]
  verbs: [get, update, patch]
# The creation of an object cannot be limited to a name.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
{{- end }}
