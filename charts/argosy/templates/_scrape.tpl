{{/*
What the embedded Prometheus scrapes: pods of fleets, and the operator. The labels namespace, fleet,
role, revision and pod are set here only; labels of an exporter with these names are renamed.
The scrape timeout is the whole interval: a late sample is better than none.
*/}}
{{- define "argosy.scrapeConfig" -}}
global:
  scrape_interval: {{ .Values.prometheus.scrapeInterval }}
  scrape_timeout: {{ .Values.prometheus.scrapeInterval }}
scrape_configs:
  - job_name: argosy-fleets
    honor_labels: false
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
