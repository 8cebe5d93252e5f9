{{/*
What the embedded Prometheus scrapes: pods of fleets, and the operator. The labels namespace, fleet,
role, revision and pod are set here only; labels of an exporter with these names are renamed.
The scrape timeout is the whole interval: a late sample is better than none.

Any pod with the label of a fleet is scraped, so each target is bounded.
A scrape beyond a bound fails as a whole, and `up` is 0. Of honest pods, a gateway with 9 classes of
requests has about 300 series, our engine 700, vLLM 1,500: a third of the bound or less. They have
at most 15 labels, but vLLM's `cache_config_info` has 45 with those of the job. Six scrapes of a pod
that shows other series each time add 30,000 series, about 100 MB. With more targets than
`target_limit` none of the job is scraped: 5,000 pods are far more than this Prometheus has memory
for. The operator has 8 series for each fleet with an SLO.
*/}}
{{- define "argosy.scrapeConfig" -}}
global:
  scrape_interval: {{ .Values.prometheus.scrapeInterval }}
  scrape_timeout: {{ .Values.prometheus.scrapeInterval }}
scrape_configs:
  - job_name: argosy-fleets
    honor_labels: false
    sample_limit: 5000
    target_limit: 5000
    body_size_limit: 8MB
    label_limit: 64
    label_name_length_limit: 128
    label_value_length_limit: 1024
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
      - source_labels: [__meta_kubernetes_pod_annotation_prometheus_io_scrape]
        action: keep
        regex: "true"
      - source_labels: [__meta_kubernetes_pod_phase]
        action: keep
        regex: Running
      # One target a pod. Engines of others have their metrics on the port of their API.
      - source_labels: [__meta_kubernetes_pod_container_port_number]
        action: keepequal
        target_label: __meta_kubernetes_pod_annotation_prometheus_io_port
      - source_labels: [__meta_kubernetes_namespace]
        target_label: namespace
      - source_labels: [__meta_kubernetes_pod_label_serving_argosy_dev_fleet]
        target_label: fleet
      - source_labels: [__meta_kubernetes_pod_label_serving_argosy_dev_role]
        target_label: role
      - source_labels: [__meta_kubernetes_pod_label_serving_argosy_dev_revision]
        target_label: revision
      - source_labels: [__meta_kubernetes_pod_name]
        target_label: pod
  - job_name: argosy-operator
    honor_labels: false
    sample_limit: 20000
    target_limit: 100
    body_size_limit: 8MB
    label_limit: 64
    label_name_length_limit: 128
    label_value_length_limit: 1024
    kubernetes_sd_configs:
      - role: pod
        namespaces:
          names: [{{ .Release.Namespace }}]
        selectors:
          - role: pod
            label: app.kubernetes.io/name=argosy,app.kubernetes.io/component=operator
    relabel_configs:
      - source_labels: [__meta_kubernetes_pod_phase]
        action: keep
        regex: Running
      - source_labels: [__meta_kubernetes_pod_container_port_name]
        action: keep
        regex: admin
      - source_labels: [__meta_kubernetes_namespace]
        target_label: namespace
      - source_labels: [__meta_kubernetes_pod_name]
        target_label: pod
{{- end }}
