{{- define "plumbline.name" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}{{ else if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}
{{- define "plumbline.agent.serviceAccountName" -}}{{ include "plumbline.name" . }}-agent{{- end }}
{{- define "plumbline.controller.serviceAccountName" -}}{{ include "plumbline.name" . }}-controller{{- end }}
{{- define "plumbline.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- define "plumbline.image" -}}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}{{- end }}

{{/*
The memory limit, if there is one, as the Go runtime's: it collects garbage more often near it instead
of being killed at it.
*/}}
{{- define "plumbline.memoryLimit" -}}
{{- with .limits }}
{{- if .memory -}}
- name: GOMEMLIMIT
  valueFrom: {resourceFieldRef: {resource: limits.memory}}
{{- end }}
{{- end }}
{{- end -}}
