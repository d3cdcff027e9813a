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

{{- define "quire.engineImage" -}}
{{- $default := printf "%s%s" .Chart.AppVersion (ternary "-cuda" "" (gt (int .Values.engine.gpus) 0)) }}
{{- printf "%s:%s" .Values.image.repository (default $default .Values.image.tag) }}
{{- end }}

{{/* Gateways need no GPU, nor the gigabytes of its libraries. */}}
{{- define "quire.gatewayImage" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
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

{{/* The name that answers carry. */}}
{{- define "quire.servedName" -}}
{{- if .Values.model.servedNames }}
{{- first .Values.model.servedNames }}
{{- else if .Values.model.path }}
{{- base .Values.model.path }}
{{- else }}
{{- default "wren" .Values.model.name }}
{{- end }}
{{- end }}

{{/* What makes engines' pods. With gateways of their own there are never two at once, as a Deployment has while it rolls:
     requests would go to one, and their answers come from the other. */}}
{{- define "quire.engineKind" -}}
{{- if gt (int .Values.engine.nodes) 1 -}}
LeaderWorkerSet
{{- else -}}
{{ default (ternary "StatefulSet" "Deployment" (gt (int .Values.gateway.replicas) 0)) .Values.engine.kind }}
{{- end }}
{{- end }}

{{/* The Service whose name leads to engines' pods. A LeaderWorkerSet makes one of its own name itself. */}}
{{- define "quire.engineService" -}}
{{ include "quire.fullname" . }}-engine{{ if gt (int .Values.engine.nodes) 1 }}-links{{ end }}
{{- end }}

{{/* Where gateways of their own reach an engine: the first of the ports. */}}
{{- define "quire.gatewayPort" }}9001{{ end }}

{{/* What the processes of an engine on several pods show each other. */}}
{{- define "quire.linkFlags" -}}
{{- with .Values.links }}
{{- if .existingSecret }}
- --link-token-file=/etc/quire/links/token
{{- end }}
{{- if .tls.existingSecret }}
- --link-ssl-certfile=/etc/quire/tls/tls.crt
- --link-ssl-keyfile=/etc/quire/tls/tls.key
- --link-ssl-ca-certs=/etc/quire/tls/ca.crt
{{- end }}
{{- end }}
{{- end }}

{{- define "quire.linkMounts" -}}
{{- with .Values.links }}
{{- if .existingSecret }}
- {name: links, mountPath: /etc/quire/links, readOnly: true}
{{- end }}
{{- if .tls.existingSecret }}
- {name: tls, mountPath: /etc/quire/tls, readOnly: true}
{{- end }}
{{- end }}
{{- end }}

{{- define "quire.linkVolumes" -}}
{{- with .Values.links }}
{{- if .existingSecret }}
- name: links
  secret: {secretName: {{ .existingSecret }}, defaultMode: 0440, items: [{key: {{ .secretKey }}, path: token}]}
{{- end }}
{{- with .tls.existingSecret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
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
command: [/usr/bin/quire]
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
{{- end }}

{{/* `startup`: the path that answers once the container has started. */}}
{{- define "quire.httpProbes" -}}
startupProbe:
  httpGet: {path: {{ .startup }}, port: http}
  {{- toYaml .probes.startup | nindent 2 }}
readinessProbe:
  httpGet: {path: /health, port: http}
  {{- toYaml .probes.readiness | nindent 2 }}
livenessProbe:
  httpGet: {path: /version, port: http}
  {{- toYaml .probes.liveness | nindent 2 }}
{{- end }}
