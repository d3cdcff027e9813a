{{/* Where a pod may run. */}}
{{- define "quire.placement" -}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
{{- with index $.placement $key }}
{{ $key }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with .placement.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .placement.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "quire.claim" -}}
accessModes: {{- toYaml .Values.cache.persistence.accessModes | nindent 2 }}
{{- with .Values.cache.persistence.storageClass }}
storageClassName: {{ . }}
{{- end }}
resources: {requests: {storage: {{ .Values.cache.persistence.size }}}}
{{- end }}

{{/* What the computing container gets: the user's resources, and its GPUs. */}}
{{- define "quire.resources" -}}
{{- $resources := deepCopy .Values.engine.resources }}
{{- if gt (int .Values.engine.gpus) 0 }}
{{- $gpus := dict .Values.engine.gpuResource (int .Values.engine.gpus) }}
{{- $resources = mergeOverwrite $resources (dict "limits" (merge $gpus (default dict $resources.limits))) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{- define "quire.preStop" -}}
lifecycle:
  preStop: {sleep: {seconds: {{ max 1 .Values.engine.preStopSeconds }}}}
{{- end }}

{{/* One container: the supervisor and all processes of an engine. */}}
{{- define "quire.serve" -}}
- name: quire
  {{- include "quire.container" . | nindent 2 }}
  args:
    - serve
    {{- with include "quire.model" . }}
    - {{ . | quote }}
    {{- end }}
    {{- with .Values.model.revision }}
    - {{ printf "--revision=%s" . | quote }}
    {{- end }}
    {{- with .Values.model.servedNames }}
    - --served-model-name
    {{- range . }}
    - {{ . | quote }}
    {{- end }}
    {{- end }}
    - --host=0.0.0.0
    - --port=8000
    - --device={{ ternary "cuda" "cpu" (gt (int .Values.engine.gpus) 0) }}
    - --tensor-parallel-size={{ include "quire.tensorParallelSize" . }}
    - --api-server-count={{ .Values.engine.apiServerCount }}
    - --shutdown-timeout={{ .Values.engine.shutdownTimeout }}
    - --log-format={{ .Values.engine.logFormat }}
    {{- range .Values.engine.extraFlags }}
    - {{ . | quote }}
    {{- end }}
  env: {{- include "quire.env" . | nindent 4 }}
    {{- include "quire.hubToken" . | nindent 4 }}
    {{- include "quire.apiKey" . | nindent 4 }}
    {{- with .Values.engine.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports: [{name: http, containerPort: 8000}]
  {{- include "quire.httpProbes" .Values.engine.probes | nindent 2 }}
  {{- include "quire.preStop" . | nindent 2 }}
  resources: {{- include "quire.resources" . | nindent 4 }}
  volumeMounts: {{- include "quire.mounts" . | nindent 4 }}
{{- end }}
