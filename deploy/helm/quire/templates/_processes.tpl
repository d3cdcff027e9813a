{{/* An engine's processes as containers of one pod, for gateways of their own. Links inside the pod are rings. */}}
{{- define "quire.processes" -}}
{{- $folder := include "quire.modelFolder" . }}
{{- $log := printf "--log-format=%s" .Values.engine.logFormat }}
{{- $scheduler := list "--listen-requests=ring:/run/quire/encoded.sock" "--listen-workers=ring:/run/quire/steps.sock" "--detokenizer=ring:/run/quire/tokens.sock" (printf "--served-model-name=%s" (include "quire.servedName" .)) }}
{{- $tokenizer := list "--listen=grpc://0.0.0.0:9001" "--scheduler=ring:/run/quire/encoded.sock" (printf "--model=%s" $folder) }}
{{- $detokenizer := list "--listen-tokens=ring:/run/quire/tokens.sock" "--listen-events=grpc://0.0.0.0:9002" (printf "--model=%s" $folder) }}
{{- $worker := list "--scheduler=ring:/run/quire/steps.sock" "--rank=0" (printf "--model=%s" $folder) (printf "--device=%s" (ternary "cuda" "cpu" (gt (int .Values.engine.gpus) 0))) }}
{{- range $process := list
  (dict "name" "detokenizer" "port" 9012 "flags" $detokenizer "ports" (list (dict "name" "events" "containerPort" 9002)))
  (dict "name" "scheduler" "port" 9013 "flags" $scheduler)
  (dict "name" "tokenizer" "port" 9011 "flags" $tokenizer "ports" (list (dict "name" "requests" "containerPort" 9001)))
  (dict "name" "worker" "port" 9014 "flags" $worker) }}
{{- $own := index $.Values.processes $process.name }}
- name: {{ $process.name }}
  {{- include "quire.container" $ | nindent 2 }}
  args:
    - {{ $process.name }}
    - --control=grpc://0.0.0.0:{{ $process.port }}
    {{- range concat $process.flags (list $log) $own.extraFlags }}
    - {{ . | quote }}
    {{- end }}
  env: {{- include "quire.env" $ | nindent 4 }}
    {{- with $.Values.engine.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - {name: {{ printf "%.11s-ctl" $process.name }}, containerPort: {{ $process.port }}}
    {{- with $process.ports }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- include "quire.grpcProbes" (dict "port" $process.port "probes" $.Values.engine.probes) | nindent 2 }}
  {{- include "quire.preStop" $ | nindent 2 }}
  resources: {{- if eq $process.name "worker" }}{{ include "quire.resources" $ | nindent 4 }}{{ else }}{{ toYaml $own.resources | nindent 4 }}{{ end }}
  volumeMounts: {{- include "quire.mounts" $ | nindent 4 }}
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

{{/* Flags by which a gateway finds the engine. */}}
{{- define "quire.gatewayLinks" -}}
{{- $engine := printf "%s-engine" (include "quire.fullname" .) }}
{{- range $flag, $port := dict "tokenizer" 9001 "detokenizer" 9002 "tokenizer-control" 9011 "detokenizer-control" 9012 "scheduler-control" 9013 "worker-control" 9014 }}
- --{{ $flag }}=grpc://{{ $engine }}:{{ $port }}
{{- end }}
{{- end }}
