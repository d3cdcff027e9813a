{{/* Values that would render something that cannot run end here. */}}
{{- define "quire.check" -}}
{{- include "quire.checkSizes" . }}
{{- include "quire.checkNodes" . }}
{{- include "quire.checkGateways" . }}
{{- include "quire.checkFlags" . }}
{{- include "quire.checkModel" . }}
{{- include "quire.checkScaling" . }}
{{- with .Values }}
{{- if and .ingress.enabled (not .ingress.hosts) }}
{{- fail "ingress.hosts: name at least one host" }}
{{- end }}
{{- if and .httpRoute.enabled (not .httpRoute.parentRefs) }}
{{- fail "httpRoute.parentRefs: name the Gateway that takes the requests" }}
{{- end }}
{{- if and .metrics.serviceMonitor.enabled .metrics.podMonitor.enabled }}
{{- fail "metrics.serviceMonitor and metrics.podMonitor would count every series twice; enable one of them" }}
{{- end }}
{{- if and .networkPolicy.enabled .engine.hostNetwork }}
{{- fail "networkPolicy: policies do not cover pods on the machines' own network; leave out engine.hostNetwork, or the policies" }}
{{- end }}
{{- if and .cache.existingClaim .cache.persistence.enabled }}
{{- fail "cache.existingClaim and cache.persistence.enabled are two volumes for models; leave one of them out" }}
{{- end }}
{{- if hasKey (default dict .engine.resources.limits) .engine.gpuResource }}
{{- fail (printf "engine.resources.limits names %s; engine.gpus sets it" .engine.gpuResource) }}
{{- end }}
{{- $shared := and .cache.persistence.enabled (not .cache.existingClaim) (ne (include "quire.engineKind" $) "StatefulSet") }}
{{- if and $shared (gt (mul .replicaCount .engine.nodes) 1) (not (has "ReadWriteMany" .cache.persistence.accessModes)) }}
{{- fail "several pods share one claim: set cache.persistence.accessModes to [ReadWriteMany], or, for engines on one node, engine.kind to StatefulSet for a claim each" }}
{{- end }}
{{- end }}
{{- end }}

{{/* The model can be where it is looked for. */}}
{{- define "quire.checkModel" -}}
{{- with .Values }}
{{- if and .model.name .model.path }}
{{- fail "model.name and model.path name two models; leave one of them out" }}
{{- end }}
{{- if and .model.revision (not .model.name) }}
{{- fail "model.revision is one of a repository of the hub; set model.name" }}
{{- end }}
{{- $volume := or .cache.existingClaim .cache.persistence.enabled .engine.extraVolumeMounts }}
{{- if and .model.path (not $volume) }}
{{- fail "model.path: /models is an empty volume; set cache.existingClaim" }}
{{- end }}
{{- if and .model.name .huggingFace.offline (not $volume) }}
{{- fail "huggingFace.offline: /models is an empty volume; set cache.existingClaim" }}
{{- end }}
{{- end }}
{{- end }}

{{/* One thing sets the number of engines, and can. */}}
{{- define "quire.checkScaling" -}}
{{- with .Values }}
{{- if and .autoscaling.enabled .keda.enabled }}
{{- fail "autoscaling and keda would both set the number of engines; enable one of them" }}
{{- end }}
{{- range $name := list "autoscaling" "keda" }}
{{- with index $.Values $name }}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
{{- fail (printf "%s.minReplicas %d is more than %s.maxReplicas %d" $name (int .minReplicas) $name (int .maxReplicas)) }}
{{- end }}
{{- end }}
{{- end }}
{{- $kind := include "quire.engineKind" $ }}
{{- $type := .engine.updateStrategy.type }}
{{- if or (and (eq "Recreate" (default "" $type)) (ne $kind "Deployment")) (and (eq "OnDelete" (default "" $type)) (ne $kind "StatefulSet")) }}
{{- fail (printf "engine.updateStrategy.type %s is none of a %s; use RollingUpdate" $type $kind) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Flags that the chart sets itself, and words that are two. */}}
{{- define "quire.checkFlags" -}}
{{- $own := dict
  "--model" "model.name" "--revision" "model.revision" "--served-model-name" "model.servedNames"
  "--tensor-parallel-size" "engine.tensorParallelSize" "-tp" "engine.tensorParallelSize"
  "--pipeline-parallel-size" "engine.pipelineParallelSize" "-pp" "engine.pipelineParallelSize"
  "--data-parallel-size" "engine.dataParallelSize" "-dp" "engine.dataParallelSize"
  "--nnodes" "engine.nodes" "--node-rank" "engine.nodes" "--headless" "engine.nodes" "--master-addr" "engine.nodes"
  "--master-port" "engine.masterPort" "--device" "engine.gpus"
  "--listen-gateways" "gateway.replicas" "--engine" "gateway.replicas"
  "--link-token-file" "links.existingSecret" "--link-ssl-certfile" "links.tls.existingSecret"
  "--api-server-count" "engine.apiServerCount" "-asc" "engine.apiServerCount"
  "--shutdown-timeout" "engine.shutdownTimeout" "--log-format" "engine.logFormat"
  "--api-key" "apiKey.existingSecret" "--hf-token" "huggingFace.existingSecret" "--download-dir" "cache.existingClaim"
  "--host" "service.type" "--port" "service.port" "--uds" "service.type"
  "--ssl-certfile" "ingress.tls" "--ssl-keyfile" "ingress.tls" }}
{{- $lists := dict "engine.extraFlags" .Values.engine.extraFlags "gateway.extraFlags" .Values.gateway.extraFlags }}
{{- range $value, $flags := $lists }}
{{- range $flag := $flags }}
{{- if regexMatch "^-[^= ]* " $flag }}
{{- fail (printf "%s: %q is two words; use %q" $value $flag (regexReplaceAll "^([^ ]*) +" $flag "${1}=")) }}
{{- end }}
{{- with get $own (regexFind "^[^=]*" $flag) }}
{{- fail (printf "%s: %s is for the chart to set; use %s" $value (regexFind "^[^=]*" $flag) .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The workers of an engine and the GPUs that they take. */}}
{{- define "quire.checkSizes" -}}
{{- $tp := int (include "quire.tensorParallelSize" .) }}
{{- $pp := int (include "quire.pipelineParallelSize" .) }}
{{- with .Values.engine }}
{{- $workers := mul $tp $pp .dataParallelSize }}
{{- $gpus := mul .gpus .nodes }}
{{- if and (gt $gpus 0) (gt $workers $gpus) }}
{{- fail (printf "engine.tensorParallelSize %d x engine.pipelineParallelSize %d x engine.dataParallelSize %d take as many GPUs, and there are %d (engine.gpus of engine.nodes)" $tp $pp (int .dataParallelSize) $gpus) }}
{{- end }}
{{- if and (gt $gpus 0) (kindIs "invalid" .tensorParallelSize) (lt $workers $gpus) }}
{{- fail (printf "%d GPUs cannot be divided evenly over engine.pipelineParallelSize %d x engine.dataParallelSize %d; set engine.tensorParallelSize" $gpus $pp (int .dataParallelSize)) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Engines on several nodes. */}}
{{- define "quire.checkNodes" -}}
{{- $pp := int (include "quire.pipelineParallelSize" .) }}
{{- $nodes := int .Values.engine.nodes }}
{{- if eq $nodes 1 }}
{{- if .Values.engine.exclusiveTopology }}
{{- fail "engine.exclusiveTopology is for engines on several nodes; set engine.nodes" }}
{{- end }}
{{- if and (or .Values.links.existingSecret .Values.links.tls.existingSecret) (not .Values.gateway.replicas) }}
{{- fail "links are for engines on several nodes, and for gateways of their own; set engine.nodes or gateway.replicas" }}
{{- end }}
{{- else }}
{{- if mod $pp $nodes }}
{{- fail (printf "engine.pipelineParallelSize %d: the stages of engine.nodes %d cannot be spread evenly; use a multiple of %d" $pp $nodes $nodes) }}
{{- end }}
{{- if gt (int .Values.engine.dataParallelSize) 1 }}
{{- fail (printf "engine.dataParallelSize %d: engines on several nodes are pods of their own; use replicaCount %d, which starts that many behind one Service" (int .Values.engine.dataParallelSize) (int .Values.engine.dataParallelSize)) }}
{{- end }}
{{- with .Values.engine.kind }}
{{- fail "engine.kind is for engines on one node; those on several are a LeaderWorkerSet: leave it out" }}
{{- end }}
{{- if and .Values.links.tls.existingSecret (not .Values.engine.hostNetwork) }}
{{- fail "links.tls: certificates are for addresses, and a pod's is not known ahead; set engine.hostNetwork, with a certificate of the machines' addresses" }}
{{- end }}
{{- end }}
{{- end }}

{{/* Gateways of their own. */}}
{{- define "quire.checkGateways" -}}
{{- with .Values }}
{{- if .gateway.replicas }}
{{- if or (gt (int .replicaCount) 1) .autoscaling.enabled .keda.enabled }}
{{- fail "gateway.replicas: gateways of their own serve one engine; install a release for each engine, with replicaCount 1 and without autoscaling" }}
{{- end }}
{{- if eq .engine.kind "Deployment" }}
{{- fail "engine.kind Deployment: with gateway.replicas there must never be two engines at once; leave it out, for a StatefulSet" }}
{{- end }}
{{- if dig "rollingUpdateConfiguration" "maxSurge" 0 .engine.updateStrategy }}
{{- fail "engine.updateStrategy: with gateway.replicas there must never be two engines at once; leave maxSurge out" }}
{{- end }}
{{- if gt (int .engine.apiServerCount) 1 }}
{{- fail (printf "engine.apiServerCount %d: gateways of their own serve the API; use gateway.replicas" (int .engine.apiServerCount)) }}
{{- end }}
{{- else if .gateway.extraFlags }}
{{- fail "gateway.extraFlags are for gateways of their own; use engine.extraFlags, or set gateway.replicas" }}
{{- end }}
{{- end }}
{{- end }}
