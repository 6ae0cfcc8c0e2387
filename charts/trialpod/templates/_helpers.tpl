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

{{- /* What the operator does in a namespace whose experiments it serves. The comment of a rule says what it is for;
tools/make_permissions makes the tables of the documentation from both. */}}
{{- define "trialpod.rules" -}}
# watch them; set the finalizer; delete them after `ttlSecondsAfterFinished`
- apiGroups: [trialpod.dev]
  resources: [tuneexperiments]
  verbs: [get, list, watch, patch, delete]
# one per trial; they are deleted with their experiment
- apiGroups: [trialpod.dev]
  resources: [tunetrials]
  verbs: [get, list, watch, create]
# write their status
- apiGroups: [trialpod.dev]
  resources: [tuneexperiments/status, tunetrials/status]
  verbs: [patch]
# set owner references to them (with the admission plug-in OwnerReferencesPermissionEnforcement)
- apiGroups: [trialpod.dev]
  resources: [tuneexperiments/finalizers, tunetrials/finalizers]
  verbs: [update]
# one per attempt
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete, deletecollection]
# the output of ended trials, which is stored
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
# the credentials that an experiment's storage names; no list
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
# the certificate by which trials verify the operator
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [trialpod-ca]
  verbs: [get, update, patch]
# the code that an experiment's configMapRef names, and the copy of it that its trials run; no list
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get]
# the same; a creation cannot be limited to a name
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create]
# report events; find out why a pod does not start
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
# why a pod waits for Kueue, where there is Kueue
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [list]
{{- end }}

{{- /* Likewise, with `trialKinds`. */}}
{{- define "trialpod.trialKindRules" -}}
{{- range .Values.trialKinds }}
# trials that are objects of this kind
- apiGroups: [{{ if contains "/" .apiVersion }}{{ splitList "/" .apiVersion | first }}{{ else }}""{{ end }}]
  resources: [{{ .resource }}]
  verbs: [get, list, create, patch, delete]
{{- end }}
{{- end }}

{{- define "trialpod.clusterRules" -}}
# verify the tokens of trial pods, which say who sends a report
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
{{- end }}

{{- /* In the operator's own namespace. */}}
{{- define "trialpod.ownRules" -}}
# its certificate authority
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [trialpod-authority]
  verbs: [get, update]
# the same; a creation cannot be limited to a name
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
# which operator serves which experiments
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [trialpod-operator]
  verbs: [get, update]
# the same; a creation cannot be limited to a name
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
{{- end }}

{{- /* Likewise, with `replicas` of more than one. */}}
{{- define "trialpod.replicaRules" -}}
# each operator has a Lease, named after its pod; the coordinator reads them all and removes those of the dead
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, update, delete]
{{- end }}

{{- /* Ports of a NetworkPolicy's rule. */}}
{{- define "trialpod.ports" -}}
{{- range . }}
- port: {{ . }}
  protocol: TCP
{{- end }}
{{- end }}

{{- /* Wherever it is: in a pod, or on the nodes. */}}
{{- define "trialpod.dnsEgress" -}}
- ports:
  - port: 53
    protocol: UDP
  - port: 53
    protocol: TCP
{{- end }}

{{/* What the groups of rbac.leaseReaders may do in the operator's namespace. */}}
{{- define "trialpod.leaseReaderRules" -}}
# `trialpod why` and `status` say whether an operator is active
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [trialpod-operator]
  verbs: [get]
{{- end }}

{{- /* Refuses what the operator would refuse when it starts, or for each experiment. */}}
{{- define "trialpod.checkStorage" -}}
{{- $storage := .Values.defaults.storage }}
{{- if contains "?" $storage.uri }}
{{- fail "defaults.storage.uri has a query; name the server by defaults.storage.endpoint" }}
{{- end }}
{{- if and $storage.operatorSecret (not (contains "{namespace}" $storage.uri)) }}
{{- fail "defaults.storage.operatorSecret needs a defaults.storage.uri with {namespace} in it, such as s3://bucket/tuning/{namespace}: else users of one namespace could reach another's data" }}
{{- end }}
{{- if and $storage.operatorSecret $storage.credentialsSecret }}
{{- fail "defaults.storage.operatorSecret and defaults.storage.credentialsSecret: set one of them; the keys are the operator's own, or those of a Secret in each namespace" }}
{{- end }}
{{- with $storage.sts.duration }}
{{- $seconds := 0 }}
{{- range regexFindAll "[0-9]+[hms]" . -1 }}
{{- $seconds = add $seconds (mul (regexFind "[0-9]+" . | atoi) (get (dict "h" 3600 "m" 60 "s" 1) (regexFind "[hms]" .))) }}
{{- end }}
{{- if or (lt $seconds 900) (gt $seconds 43200) }}
{{- fail (printf "defaults.storage.sts.duration is %s; stores allow 15m to 12h" .) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The default storage, for the operator and for the page. */}}
{{- define "trialpod.storageEnv" -}}
{{- include "trialpod.checkStorage" . }}
{{- $name := include "trialpod.fullname" . }}
{{- $storage := .Values.defaults.storage }}
{{- if and .Values.minio.enabled (not $storage.uri) }}
{{- $endpoint := printf "http://%s-minio.%s.svc:9000" $name .Release.Namespace }}
{{- $uri := printf "s3://%s/experiments" .Values.minio.bucket }}
{{- $storage = dict "uri" $uri "endpoint" $endpoint "credentialsSecret" (include "trialpod.minioSecret" .) }}
{{- end }}
{{- with $storage.uri }}
- name: TRIALPOD_DEFAULT_STORAGE_URI
  value: {{ . | quote }}
{{- end }}
{{- with $storage.endpoint }}
- name: TRIALPOD_DEFAULT_STORAGE_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with $storage.credentialsSecret }}
- name: TRIALPOD_DEFAULT_STORAGE_SECRET
  value: {{ . | quote }}
{{- end }}
{{- end }}

{{- /* What the page of the cluster reads (`ui.enabled`), in a namespace whose experiments it shows. */}}
{{- define "trialpod.uiRules" -}}
# list and show them, to those who may see them
- apiGroups: [trialpod.dev]
  resources: [tuneexperiments]
  verbs: [get, list]
# the credentials that an experiment's storage names; no list
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}

{{- define "trialpod.uiClusterRules" -}}
# who a user is
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
# what a user may see and do
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end }}
