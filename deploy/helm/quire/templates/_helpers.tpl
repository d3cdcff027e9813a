{{- define "quire.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/* Short enough for the names that a StatefulSet and its pods derive from it: labels have 63 characters. */}}
{{- define "quire.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 42 | trimSuffix "-" }}
{{- else if contains (include "quire.name" .) .Release.Name }}
{{- .Release.Name | trunc 42 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "quire.name" .) | trunc 42 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "quire.selector" -}}
app.kubernetes.io/name: {{ include "quire.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "quire.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{ include "quire.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Which pods take requests: engines, or gateways where they are apart. */}}
{{- define "quire.front" -}}
{{- if .Values.gateway.replicas }}gateway{{ else }}engine{{ end }}
{{- end }}

{{/* Of pods that serve HTTP, for a Prometheus without the operator. */}}
{{- define "quire.scrapeAnnotations" -}}
{{- if .Values.metrics.scrapeAnnotations -}}
prometheus.io/scrape: "true"
prometheus.io/port: "8000"
prometheus.io/path: /metrics
{{- end }}
{{- end }}

{{- define "quire.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "quire.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "quire.image" -}}
{{- $default := printf "%s%s" .Chart.AppVersion (ternary "-cuda" "" (gt (int .Values.engine.gpus) 0)) }}
{{- printf "%s:%s" .Values.image.repository (default $default .Values.image.tag) }}
{{- end }}

{{/* Stages of an engine: as asked for, else one for each node. */}}
{{- define "quire.pipelineParallelSize" -}}
{{- if kindIs "invalid" .Values.engine.pipelineParallelSize }}
{{- int .Values.engine.nodes }}
{{- else }}
{{- int .Values.engine.pipelineParallelSize }}
{{- end }}
{{- end }}

{{/* Workers of a stage: as asked for, else what gives each GPU one. */}}
{{- define "quire.tensorParallelSize" -}}
{{- if kindIs "invalid" .Values.engine.tensorParallelSize }}
{{- $stages := mul (include "quire.pipelineParallelSize" .) .Values.engine.dataParallelSize }}
{{- max 1 (div (mul .Values.engine.gpus .Values.engine.nodes) $stages) }}
{{- else }}
{{- int .Values.engine.tensorParallelSize }}
{{- end }}
{{- end }}

{{/* What the program is told to serve: a word, or none for the model that it brings. */}}
{{- define "quire.model" -}}
{{- if .Values.model.path }}
{{- printf "/models/%s" (.Values.model.path | trimPrefix "/models/") }}
{{- else }}
{{- .Values.model.name }}
{{- end }}
{{- end }}

{{/* Where the init container puts a link to the model, for processes that take a folder. */}}
{{- define "quire.modelFolder" -}}
{{- if .Values.model.path }}
{{- include "quire.model" . }}
{{- else }}
{{- printf "/models/quire/%s" (include "quire.fullname" .) }}
{{- end }}
{{- end }}

{{/* Variables of every container. The root file system is read-only: what is written goes to volumes. */}}
{{- define "quire.env" -}}
- {name: HOME, value: /tmp}
- {name: XDG_RUNTIME_DIR, value: /run/quire}
- {name: QUIRE_CACHE, value: /tmp/quire}
- {name: HF_HOME, value: /models}
{{- with .Values.engine.kernelCache }}
- {name: QUIRE_KERNEL_CACHE, value: {{ . | quote }}}
{{- end }}
{{- with .Values.huggingFace.endpoint }}
- {name: HF_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- if .Values.huggingFace.offline }}
- {name: HF_HUB_OFFLINE, value: "1"}
{{- end }}
{{- end }}

{{- define "quire.hubToken" -}}
{{- with .Values.huggingFace.existingSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.huggingFace.secretKey }}}}
{{- end }}
{{- end }}

{{- define "quire.apiKey" -}}
{{- with .Values.apiKey.existingSecret }}
- name: QUIRE_API_KEY
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.apiKey.secretKey }}}}
{{- end }}
{{- end }}

{{- define "quire.mounts" -}}
- {name: run, mountPath: /run/quire}
- {name: tmp, mountPath: /tmp}
- {name: shm, mountPath: /dev/shm}
- {name: models, mountPath: /models}
{{- with .Values.engine.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "quire.container" -}}
image: {{ include "quire.image" . }}
command: [/usr/bin/quire]
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
{{- end }}

{{/* Probes of a process that serves the gRPC health service on its control plane. */}}
{{- define "quire.grpcProbes" -}}
startupProbe:
  grpc: {port: {{ .port }}}
  {{- toYaml .probes.startup | nindent 2 }}
readinessProbe:
  grpc: {port: {{ .port }}}
  {{- toYaml .probes.readiness | nindent 2 }}
livenessProbe:
  grpc: {port: {{ .port }}, service: live}
  {{- toYaml .probes.liveness | nindent 2 }}
{{- end }}

{{- define "quire.httpProbes" -}}
startupProbe:
  httpGet: {path: /health, port: http}
  {{- toYaml .startup | nindent 2 }}
readinessProbe:
  httpGet: {path: /health, port: http}
  {{- toYaml .readiness | nindent 2 }}
livenessProbe:
  httpGet: {path: /version, port: http}
  {{- toYaml .liveness | nindent 2 }}
{{- end }}
