{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* The name of all objects: short enough for "-worker-1023" and a label, and
     that of a Service (RFC 1035). */}}
{{- define "capstan.name" -}}
{{- if not (regexMatch "^[a-z][-a-z0-9]*$" .Release.Name) -}}
{{- fail (printf "the release's name %q cannot be that of a Service: it has to begin with a letter, and may have only a-z, 0-9 and -; choose another" .Release.Name) -}}
{{- end -}}
{{- .Release.Name | trunc 45 | trimSuffix "-" -}}
{{- end -}}

{{- define "capstan.selector" -}}
app.kubernetes.io/name: capstan
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "capstan.labels" -}}
{{ include "capstan.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* The addresses of a role: (list . ROLE COUNT). */}}
{{- define "capstan.hosts" -}}
{{- $name := include "capstan.name" (index . 0) -}}
{{- $role := index . 1 -}}
{{- $hosts := list -}}
{{- range $i := until (int (index . 2)) -}}
{{- $hosts = append $hosts (printf "%s-%s-%d.%s:2222" $name $role $i $name) -}}
{{- end -}}
{{- join "," $hosts -}}
{{- end -}}

{{- define "capstan.claim" -}}
{{- .Values.checkpoints.claim | default (printf "%s-checkpoints" (include "capstan.name" .)) -}}
{{- end -}}

{{- define "capstan.image" -}}
{{- $image := .Values.image -}}
{{- $name := $image.repository -}}
{{- if $image.registry -}}
{{- $name = printf "%s/%s" (trimSuffix "/" $image.registry) $name -}}
{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name ($image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
