{{/* Labels on every object. Call with (dict "root" $ "component" "webhook"). */}}
{{- define "isochrone.labels" -}}
{{ include "isochrone.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: isochrone
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name (.root.Chart.Version | replace "+" "_") }}
{{- end }}

{{/* Labels that never change: selectors are immutable. */}}
{{- define "isochrone.selector" -}}
app.kubernetes.io/name: isochrone
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "isochrone.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{/* Pod-level fields that every pod of ours shares. */}}
{{- define "isochrone.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Container-level fields that every container of ours shares. */}}
{{- define "isochrone.container" -}}
image: {{ include "isochrone.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "isochrone.probes" -}}
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 3
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 2
{{- end }}

{{/* Not empty where agents get their certificates from the controller. */}}
{{- define "isochrone.enrols" -}}
{{- if and .Values.agent.enabled .Values.agent.enrol (not .Values.agent.plaintext) }}true{{ end }}
{{- end }}

{{/* Where pods run. Call with the values of one process. */}}
{{- define "isochrone.where" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* A value that had another name: values.yaml always has the new key, so the old one, where somebody sets it, counts. */}}
{{- define "isochrone.renamed" -}}
{{- if hasKey .in .old }}{{ get .in .old }}{{ else }}{{ get .in .new }}{{ end }}
{{- end }}
