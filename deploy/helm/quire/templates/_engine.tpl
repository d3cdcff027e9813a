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

{{/* One container: the supervisor and all processes of an engine, or (role `node`) workers that join a head. */}}
{{- define "quire.serve" -}}
{{- $pp := int (include "quire.pipelineParallelSize" .root) }}
{{- $node := eq .role "node" }}
{{- with .root }}
{{- $nodes := int .Values.engine.nodes }}
- name: quire
  image: {{ include "quire.engineImage" . }}
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
    {{- if gt $pp 1 }}
    - --pipeline-parallel-size={{ $pp }}
    {{- end }}
    {{- if gt (int .Values.engine.dataParallelSize) 1 }}
    - --data-parallel-size={{ .Values.engine.dataParallelSize }}
    {{- end }}
    {{- if gt $nodes 1 }}
    - --nnodes={{ $nodes }}
    - --node-rank=$(NODE_RANK)
    - --master-addr=$({{ ternary "LWS_LEADER_ADDRESS" "VLLM_HOST_IP" $node }})
    - --master-port={{ .Values.engine.masterPort }}
    {{- if $node }}
    - --headless
    {{- end }}
    {{- end }}
    {{- if .Values.gateway.replicas }}
    - --listen-gateways=grpc://0.0.0.0:{{ include "quire.gatewayPort" . }}
    - --api-server-count=0
    {{- else }}
    - --api-server-count={{ .Values.engine.apiServerCount }}
    {{- end }}
    {{- include "quire.linkFlags" . | nindent 4 }}
    - --shutdown-timeout={{ .Values.engine.shutdownTimeout }}
    - --log-format={{ .Values.engine.logFormat }}
    {{- range .Values.engine.extraFlags }}
    - {{ . | quote }}
    {{- end }}
  env: {{- include "quire.env" . | nindent 4 }}
    {{- if gt $nodes 1 }}
    - name: NODE_RANK
      valueFrom: {fieldRef: {fieldPath: "metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']"}}
    # Where the other nodes reach this one.
    - name: VLLM_HOST_IP
      valueFrom: {fieldRef: {fieldPath: status.podIP}}
    {{- end }}
    {{- include "quire.hubToken" . | nindent 4 }}
    {{- if not (or $node .Values.gateway.replicas) }}
    {{- include "quire.apiKey" . | nindent 4 }}
    {{- end }}
    {{- with .Values.engine.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if not $node }}
  ports:
    - {name: http, containerPort: 8000}
    {{- if gt $nodes 1 }}
    - {name: links, containerPort: {{ .Values.engine.masterPort }}}
    {{- end }}
    {{- if .Values.gateway.replicas }}
    # The first of several that follow each other.
    - {name: gateways, containerPort: {{ include "quire.gatewayPort" . }}}
    {{- end }}
  {{- include "quire.httpProbes" (dict "probes" .Values.engine.probes "startup" "/health") | nindent 2 }}
  {{- include "quire.preStop" . | nindent 2 }}
  {{- end }}
  resources: {{- include "quire.resources" . | nindent 4 }}
  volumeMounts: {{- include "quire.mounts" . | nindent 4 }}
    {{- include "quire.linkMounts" . | nindent 4 }}
{{- end }}
{{- end }}
