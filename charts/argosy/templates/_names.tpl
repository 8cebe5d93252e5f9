{{/*
Fill in the values that are missing: `helm upgrade --reuse-values` hands over those of the chart that
was installed before, which lack what is newer. Resources stay as they are: `limits: null` takes the
default limits away, and looks like values without limits. Each template begins with this.
*/}}
{{- define "argosy.fillValues" -}}
{{- include "argosy.fill" (list .Values (include "argosy.defaults" . | fromJson)) -}}
{{- end }}
{{- define "argosy.fill" -}}
{{- $values := index . 0 -}}
{{- range $key, $default := index . 1 -}}
  {{- if eq $key "resources" -}}
  {{- else if or (not (hasKey $values $key)) (kindIs "invalid" (get $values $key)) -}}
    {{- $_ := set $values $key $default -}}
  {{- else if kindIs "map" $default -}}
    {{- include "argosy.fill" (list (get $values $key) $default) -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{/* What the chart's objects are called: the release, with "argosy" in it. */}}
{{- define "argosy.name" -}}
{{- if contains "argosy" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-argosy" (.Release.Name | trunc 33 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "argosy.operator" -}}{{ include "argosy.name" . }}-operator{{- end }}
{{- define "argosy.prometheus" -}}{{ include "argosy.name" . }}-prometheus{{- end }}

{{/* Cluster-scoped names hold the namespace, so that two releases do not meet. */}}
{{- define "argosy.clusterName" -}}{{ .Release.Namespace }}-{{ include "argosy.name" . }}{{- end }}

{{/* Labels that select a component's pods: (list $ "operator"). */}}
{{- define "argosy.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: argosy
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* All labels of a component's objects: (list $ "operator"), and more of them in a third item. */}}
{{- define "argosy.labels" -}}
{{- $ := index . 0 -}}
{{- $own := include "argosy.ownLabels" . | fromYaml -}}
{{- $more := dict -}}
{{- if gt (len .) 2 }}{{ $more = index . 2 }}{{ end -}}
{{ toYaml (merge $own $more $.Values.commonLabels) }}
{{- end }}

{{/* Those that the chart itself writes, which no value replaces. */}}
{{- define "argosy.ownLabels" -}}
{{- $ := index . 0 -}}
{{ include "argosy.selector" . }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* An image: (list $ "engine"). A tag beside a digest is for people, so the default one is left out. */}}
{{- define "argosy.image" -}}
{{- $ := index . 0 -}}
{{- $image := get $.Values.images (index . 1) -}}
{{- $tag := $image.tag | default (ternary "" $.Chart.AppVersion (ne $image.digest "")) -}}
{{ $image.registry | default $.Values.images.registry }}/{{ $image.repository }}{{ with $tag }}:{{ . }}{{ end }}{{ with $image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* The operator's ServiceAccount. */}}
{{- define "argosy.serviceAccount" -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) }}
{{- fail "serviceAccount.create is false: name the ServiceAccount that is there in serviceAccount.name" }}
{{- end }}
{{- .Values.serviceAccount.name | default (include "argosy.operator" .) -}}
{{- end }}

{{/* The address of Prometheus; empty where there is none. */}}
{{- define "argosy.prometheusUrl" -}}
{{- if .Values.prometheus.embedded -}}
http://{{ include "argosy.prometheus" . }}.{{ .Release.Namespace }}.svc:9090
{{- else -}}
{{ .Values.prometheus.url }}
{{- end -}}
{{- end }}

{{/* The restricted profile of Pod Security: the pod's part and the container's. */}}
{{- define "argosy.podSecurity" -}}
runAsNonRoot: true
{{- if eq .Values.operator.userIds "Fixed" }}
runAsUser: 65532
runAsGroup: 65532
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "argosy.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
{{- end }}

{{/* Where a component's pods run: .Values.operator or .Values.prometheus. */}}
{{- define "argosy.placement" -}}
{{- range $field := list "nodeSelector" "tolerations" "affinity" "priorityClassName" }}
{{- with get $ $field }}
{{ toYaml (dict $field .) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "argosy.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Metadata of an object for Prometheus or Grafana, without its name: (list $ values component). */}}
{{- define "argosy.monitoringMetadata" -}}
{{- $ := index . 0 -}}
{{- $values := index . 1 -}}
namespace: {{ $.Release.Namespace }}
labels:
  {{- include "argosy.labels" (list $ (index . 2) $values.labels) | nindent 2 }}
{{- with $values.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Fail where the Prometheus Operator's API is missing: (list $ "podMonitor"). helm itself would name a
kind and a version. `helm template` knows no cluster and its APIs only by --api-versions.
*/}}
{{- define "argosy.checkMonitoringAPI" -}}
{{- $ := index . 0 -}}
{{- $api := "monitoring.coreos.com/v1" -}}
{{- if and $.Values.monitoring.checkAPI (not ($.Capabilities.APIVersions.Has $api)) }}
{{- fail (printf "monitoring.%s.enabled needs the API %s, which this cluster does not have: install the Prometheus Operator first, or leave it false. For `helm template` write `--api-versions %s`, or set monitoring.checkAPI=false." (index . 1) $api $api) }}
{{- end }}
{{- end }}
