{{/* Generated from values.yaml by `python -m docs.generate --write`. */}}
{{- define "argosy.defaults" -}}
{
  "images": {
    "registry": "ghcr.io/argosy-serving",
    "operator": "",
    "gateway": "",
    "engine": "",
    "fetch": "",
    "pullSecrets": []
  },
  "podTemplate": {
    "metadata": {},
    "spec": {}
  },
  "operator": {
    "replicas": 2,
    "resources": {
      "requests": {
        "cpu": "100m",
        "memory": "128Mi"
      },
      "limits": {
        "memory": "512Mi"
      }
    },
    "kubeAPI": {
      "qps": 100,
      "burst": 200
    },
    "imageRollouts": 0,
    "gpuBudget": null,
    "namespaceGpuBudgets": {},
    "userIds": "Fixed",
    "nodeSelector": {},
    "tolerations": [],
    "affinity": {},
    "priorityClassName": "",
    "podAnnotations": {},
    "env": []
  },
  "rbac": {
    "namespaced": false,
    "aggregate": true
  },
  "crds": {
    "enabled": true,
    "keep": true
  },
  "prometheus": {
    "url": "",
    "allowed": [],
    "tokenSecret": "",
    "tokenFile": "",
    "ca": {
      "configMap": "",
      "secret": "",
      "key": "ca.crt"
    },
    "headers": {},
    "headersSecret": "",
    "embedded": false,
    "image": "docker.io/prom/prometheus:v3.15.0",
    "scrapeInterval": "15s",
    "retention": "6h",
    "resources": {
      "requests": {
        "cpu": "100m",
        "memory": "256Mi"
      },
      "limits": {
        "memory": "1Gi"
      }
    },
    "nodeSelector": {},
    "tolerations": [],
    "affinity": {},
    "priorityClassName": "",
    "podAnnotations": {}
  },
  "monitoring": {
    "checkAPI": true,
    "podMonitor": {
      "enabled": false,
      "labels": {},
      "annotations": {},
      "interval": "15s"
    },
    "prometheusRule": {
      "enabled": false,
      "labels": {},
      "annotations": {},
      "docsUrl": ""
    },
    "dashboards": {
      "enabled": false,
      "labels": {
        "grafana_dashboard": "1"
      },
      "annotations": {}
    }
  }
}
{{- end }}
