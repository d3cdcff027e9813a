{{- define "quire.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "quire.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "quire.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "quire.name" .) | trunc 50 | trimSuffix "-" }}
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

{{/* Workers of an engine: as asked for, else one for each GPU. */}}
{{- define "quire.tensorParallelSize" -}}
{{- if kindIs "invalid" .Values.engine.tensorParallelSize }}
{{- max 1 (int .Values.engine.gpus) }}
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

{{/* Values that would render something that cannot run end here. */}}
{{- define "quire.check" -}}
{{- $tp := int (include "quire.tensorParallelSize" .) }}
{{- with .Values }}
{{- if gt (int .engine.nodes) 1 }}
{{- fail (printf "engine.nodes %d: an engine runs on one node; use engine.gpus of one node, and replicaCount for more engines" (int .engine.nodes)) }}
{{- end }}
{{- if gt (int .engine.pipelineParallelSize) 1 }}
{{- fail (printf "engine.pipelineParallelSize %d: the chart starts engines of one pipeline stage; use engine.tensorParallelSize" (int .engine.pipelineParallelSize)) }}
{{- end }}
{{- if gt (int .engine.dataParallelSize) 1 }}
{{- fail (printf "engine.dataParallelSize %d: use replicaCount %d, which starts that many engines behind one Service" (int .engine.dataParallelSize) (int .engine.dataParallelSize)) }}
{{- end }}
{{- if and (gt (int .engine.gpus) 0) (gt $tp (int .engine.gpus)) }}
{{- fail (printf "engine.tensorParallelSize %d takes as many GPUs, and engine.gpus is %d" $tp (int .engine.gpus)) }}
{{- end }}
{{- if and .model.name .model.path }}
{{- fail "model.name and model.path name two models; leave one of them out" }}
{{- end }}
{{- if and .ingress.enabled (not .ingress.hosts) }}
{{- fail "ingress.hosts: name at least one host" }}
{{- end }}
{{- if and .httpRoute.enabled (not .httpRoute.parentRefs) }}
{{- fail "httpRoute.parentRefs: name the Gateway that takes the requests" }}
{{- end }}
{{- if and .autoscaling.enabled .keda.enabled }}
{{- fail "autoscaling and keda would both set the number of engines; enable one of them" }}
{{- end }}
{{- if and .metrics.serviceMonitor.enabled .metrics.podMonitor.enabled }}
{{- fail "metrics.serviceMonitor and metrics.podMonitor would count every series twice; enable one of them" }}
{{- end }}
{{- $claims := and (eq .engine.kind "StatefulSet") (not .cache.existingClaim) }}
{{- if and .cache.persistence.enabled (not .cache.existingClaim) (not $claims) (gt (int .replicaCount) 1) (not (has "ReadWriteMany" .cache.persistence.accessModes)) }}
{{- fail "several engines of a Deployment share one claim: set cache.persistence.accessModes to [ReadWriteMany], or engine.kind to StatefulSet for a claim each" }}
{{- end }}
{{- if .gateway.replicas }}
{{- if or (gt (int .replicaCount) 1) .autoscaling.enabled .keda.enabled }}
{{- fail "gateway.replicas: gateways of their own serve one engine; install a release for each engine, with replicaCount 1 and without autoscaling" }}
{{- end }}
{{- if gt $tp 1 }}
{{- fail (printf "gateway.replicas: workers would be containers that see one GPU each, and a group of %d ranks needs to see all; use gateway.replicas 0" $tp) }}
{{- end }}
{{- if .engine.extraFlags }}
{{- fail "gateway.replicas: engine.extraFlags are those of `quire serve`; use gateway.extraFlags and processes.<name>.extraFlags" }}
{{- end }}
{{- if and (not .model.path) (not .model.fetch.enabled) }}
{{- fail "gateway.replicas: the engine's processes take a folder; enable model.fetch, or name one by model.path" }}
{{- end }}
{{- else if or .gateway.extraFlags .processes.tokenizer.extraFlags .processes.scheduler.extraFlags .processes.worker.extraFlags .processes.detokenizer.extraFlags }}
{{- fail "gateway.extraFlags and processes.<name>.extraFlags are for gateways of their own; use engine.extraFlags, or set gateway.replicas" }}
{{- end }}
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
