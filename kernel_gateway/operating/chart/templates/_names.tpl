{{- define "name" -}}
{{- $name := ternary .Release.Name (printf "%s-kernel-gateway" .Release.Name) (contains "kernel-gateway" .Release.Name) -}}
{{- $name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "selector" -}}
app.kubernetes.io/name: kernel-gateway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "labels" -}}
{{ include "selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* The text of a setting, as the gateway reads it from the environment. */ -}}
{{- define "setting" -}}
{{- if kindIs "string" . }}{{ . }}{{ else if and (kindIs "slice" .) (not (kindIs "map" (first .))) }}{{ join "," . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end }}

{{- define "keys secret" -}}
{{- .Values.keysSecret | default (include "name" .) -}}
{{- end }}

{{- define "scheme" -}}
{{- ternary "HTTPS" "HTTP" (or (eq (toString .Values.settings.tls) "true") (ne (toString (.Values.settings.tls_certificate | default "")) "")) -}}
{{- end }}
