{{- define "lessor.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "lessor.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "lessor.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "lessor.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The name of objects that belong to the whole cluster: two releases of one name must not share them. */}}
{{- define "lessor.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "lessor.fullname" .) | trunc 100 | trimSuffix "-" -}}
{{- end -}}

{{- define "lessor.selector" -}}
app.kubernetes.io/name: {{ include "lessor.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "lessor.labels" -}}
{{ include "lessor.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "lessor.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "lessor.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "lessor.image" -}}
{{- with .Values.image -}}
{{- if .registry }}{{ .registry }}/{{ end -}}
{{- .repository -}}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* Flags of `lessor run` from a map: minTtl becomes --min-ttl; true is a flag by itself, false and null are none. */}}
{{- define "lessor.flags" -}}
{{- range $name, $value := . }}
{{- if kindIs "bool" $value }}
{{- if $value }}
- --{{ kebabcase $name }}
{{- end }}
{{- else if kindIs "slice" $value }}
{{- range $value }}
- {{ printf "--%s=%v" (kebabcase $name) . | quote }}
{{- end }}
{{- else if not (kindIs "invalid" $value) }}
- {{ printf "--%s=%v" (kebabcase $name) $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Everything that is the same for all Pods of the chart. */}}
{{- define "lessor.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The beginning of a container of the chart. */}}
{{- define "lessor.container" -}}
image: {{ include "lessor.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- end -}}

{{/* The kinds that can be attached, ConfigMaps among them, read as `lessor run` reads them: a list, as JSON. */}}
{{- define "lessor.attachable" -}}
{{- $kinds := list }}
{{- $names := list }}
{{- range .Values.attachable }}
{{- $name := regexFind "^[^/:]+" . }}
{{- if has $name $names }}
{{- fail (printf "attachable: %s is listed twice: leave one of them" $name) }}
{{- end }}
{{- $names = append $names $name }}
{{- $resource := regexFind "^[^.]+" $name }}
{{- $group := trimPrefix $resource $name | trimPrefix "." }}
{{- $keys := or (has $name (list "configmaps" "secrets")) (contains ":pointers" .) }}
{{- $kinds = append $kinds (dict "group" $group "resource" $resource "keys" $keys) }}
{{- end }}
{{- if not (has "configmaps" $names) }}
{{- $kinds = prepend $kinds (dict "group" "" "resource" "configmaps" "keys" true) }}
{{- end }}
{{- toJson $kinds }}
{{- end -}}
