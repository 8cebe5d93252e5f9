{{/*
What Prometheus scrapes: pods of fleets, and the operator. The embedded Prometheus has it as two jobs,
the Prometheus Operator as two PodMonitors (podmonitors.yaml). The rules are written with the fields
of a PodMonitor, and `argosy.asJob` names them as a job has them. The labels namespace, fleet, role,
revision and pod are set here only; labels of an exporter with these names are renamed. The scrape
timeout is the whole interval: a late sample is better than none.

Any pod with the label of a fleet is scraped, so each target is bounded.
A scrape beyond a bound fails as a whole, and `up` is 0. Of honest pods, a gateway with 9 classes of
requests has about 300 series, our engine 700, vLLM 1,500: a third of the bound or less. They have
at most 15 labels, but vLLM's `cache_config_info` has 45 with those of the job. Six scrapes of a pod
that shows other series each time add 30,000 series, about 100 MB. With more targets than
`targetLimit` none of the job is scraped: 5,000 pods are far more than the embedded Prometheus has
memory for. The operator has about 30 series for each fleet with an SLO.
*/}}
{{- define "argosy.fleetLimits" -}}
sampleLimit: 5000
targetLimit: 5000
{{ include "argosy.limits" . }}
{{- end }}
{{- define "argosy.operatorLimits" -}}
sampleLimit: 50000
targetLimit: 100
{{ include "argosy.limits" . }}
{{- end }}
{{- define "argosy.limits" -}}
bodySizeLimit: 8MB
labelLimit: 64
labelNameLengthLimit: 128
labelValueLengthLimit: 1024
{{- end }}

{{- define "argosy.fleetRules" -}}
- sourceLabels: [__meta_kubernetes_pod_annotation_prometheus_io_scrape]
  action: keep
  regex: "true"
- sourceLabels: [__meta_kubernetes_pod_phase]
  action: keep
  regex: Running
# One target a pod. Engines of others have their metrics on the port of their API.
- sourceLabels: [__meta_kubernetes_pod_container_port_number]
  action: keepequal
  targetLabel: __meta_kubernetes_pod_annotation_prometheus_io_port
- sourceLabels: [__meta_kubernetes_namespace]
  targetLabel: namespace
- sourceLabels: [__meta_kubernetes_pod_label_serving_argosy_dev_fleet]
  targetLabel: fleet
- sourceLabels: [__meta_kubernetes_pod_label_serving_argosy_dev_role]
  targetLabel: role
- sourceLabels: [__meta_kubernetes_pod_label_serving_argosy_dev_revision]
  targetLabel: revision
- sourceLabels: [__meta_kubernetes_pod_name]
  targetLabel: pod
{{- end }}
{{- define "argosy.operatorRules" -}}
- sourceLabels: [__meta_kubernetes_pod_phase]
  action: keep
  regex: Running
- sourceLabels: [__meta_kubernetes_pod_container_port_name]
  action: keep
  regex: admin
- sourceLabels: [__meta_kubernetes_namespace]
  targetLabel: namespace
- sourceLabels: [__meta_kubernetes_pod_name]
  targetLabel: pod
{{- end }}

{{/* Fields of a PodMonitor under the names that they have in a job. */}}
{{- define "argosy.asJob" -}}
{{- range $field, $value := . }}
{{ snakecase $field }}: {{ toJson $value }}
{{- end }}
{{- end }}

{{- define "argosy.scrapeConfig" -}}
global:
  scrape_interval: {{ .Values.prometheus.scrapeInterval }}
  scrape_timeout: {{ .Values.prometheus.scrapeInterval }}
scrape_configs:
  - job_name: argosy-fleets
    honor_labels: false
    {{- include "argosy.fleetLimits" . | fromYaml | include "argosy.asJob" | nindent 4 }}
    kubernetes_sd_configs:
      - role: pod
        selectors:
          - role: pod
            label: serving.argosy.dev/fleet
        {{- if .Values.rbac.namespaced }}
        namespaces:
          names: [{{ .Release.Namespace }}]
        {{- end }}
    relabel_configs:
      {{- range include "argosy.fleetRules" . | fromYamlArray }}
      - {{ include "argosy.asJob" . | indent 8 | trim }}
      {{- end }}
  - job_name: argosy-operator
    honor_labels: false
    {{- include "argosy.operatorLimits" . | fromYaml | include "argosy.asJob" | nindent 4 }}
    kubernetes_sd_configs:
      - role: pod
        namespaces:
          names: [{{ .Release.Namespace }}]
        selectors:
          - role: pod
            label: app.kubernetes.io/name=argosy,app.kubernetes.io/component=operator
    relabel_configs:
      {{- range include "argosy.operatorRules" . | fromYamlArray }}
      - {{ include "argosy.asJob" . | indent 8 | trim }}
      {{- end }}
{{- end }}
