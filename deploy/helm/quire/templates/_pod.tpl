{{/* Pods of an engine. Role `engine`: it serves HTTP; role `node`: workers alone, of an engine on several nodes. */}}
{{- define "quire.pod" -}}
{{- $node := eq .role "node" }}
{{- with .root }}
metadata:
  labels: {{- include "quire.labels" . | nindent 4 }}
    app.kubernetes.io/component: {{ ternary "engine-node" "engine" $node }}
    {{- if not (or $node .Values.gateway.replicas) }}
    # Endpoint pickers read vLLM's metric names of this pod.
    llm-d.ai/engine-type: vllm
    inference.networking.k8s.io/engine-type: vllm
    {{- end }}
    {{- with .Values.engine.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: quire
    {{- if not $node }}
    {{- include "quire.scrapeAnnotations" . | nindent 4 }}
    {{- end }}
    {{- with .Values.engine.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "quire.serviceAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- if .Values.engine.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- if $node }}
  # A group ends with its head: requests have been finished by then.
  terminationGracePeriodSeconds: 30
  {{- else }}
  # Leaving the Service, running requests, and the ends of the processes behind the gateway.
  terminationGracePeriodSeconds: {{ add .Values.engine.preStopSeconds .Values.engine.shutdownTimeout 30 }}
  {{- end }}
  securityContext: {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- include "quire.placement" (dict "placement" .Values.engine "root" .) | nindent 2 }}
  {{- if and .Values.model.fetch.enabled (not .Values.model.path) .Values.model.name }}
  initContainers:
    - name: fetch
      image: {{ include "quire.engineImage" . }}
      {{- include "quire.container" . | nindent 6 }}
      args:
        - fetch
        - {{ .Values.model.name | quote }}
        {{- with .Values.model.revision }}
        - {{ printf "--revision=%s" . | quote }}
        {{- end }}
      env: {{- include "quire.env" . | nindent 8 }}
        {{- include "quire.hubToken" . | nindent 8 }}
        {{- with .Values.engine.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      resources: {{- toYaml .Values.model.fetch.resources | nindent 8 }}
      volumeMounts: {{- include "quire.mounts" . | nindent 8 }}
  {{- end }}
  containers:
    {{- include "quire.serve" $ | nindent 4 }}
  volumes:
    - {name: run, emptyDir: {medium: Memory, sizeLimit: 64Mi}}
    - {name: tmp, emptyDir: {}}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ .Values.engine.sharedMemory }}}
    {{- if .Values.cache.existingClaim }}
    - name: models
      persistentVolumeClaim: {claimName: {{ .Values.cache.existingClaim }}}
    {{- else if not .Values.cache.persistence.enabled }}
    - name: models
      emptyDir: {sizeLimit: {{ .Values.cache.emptyDirSize }}}
    {{- else if ne (include "quire.engineKind" .) "StatefulSet" }}
    - name: models
      persistentVolumeClaim: {claimName: {{ include "quire.fullname" . }}-models}
    {{- end }}
    {{- include "quire.linkVolumes" . | nindent 4 }}
    {{- with .Values.engine.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
{{- end }}
