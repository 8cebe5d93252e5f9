{{/* Generated from values.yaml by `python -m docs.generate --write`. */}}
{{- define "argosy.defaults" -}}
{
  "commonLabels": {},
  "images": {
    "registry": "ghcr.io/argosy-serving",
    "pullPolicy": "IfNotPresent",
    "pullSecrets": [],
    "operator": {
      "registry": "",
      "repository": "operator",
      "tag": "",
      "digest": ""
    },
    "gateway": {
      "registry": "",
      "repository": "gateway",
      "tag": "",
      "digest": ""
    },
    "engine": {
      "registry": "",
      "repository": "engine",
      "tag": "",
      "digest": ""
    },
    "fetch": {
      "registry": "",
      "repository": "fetch",
      "tag": "",
      "digest": ""
    },
    "prometheus": {
      "registry": "docker.io",
      "repository": "prom/prometheus",
      "tag": "v3.15.0",
      "digest": ""
    }
  },
  "podTemplate": {
    "metadata": {},
    "spec": {}
  },
  "operator": {
    "replicas": 2,
    "logLevel": "info",
    "logFormat": "json",
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
    "topologySpreadConstraints": [
      {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway"
      }
    ],
    "priorityClassName": "",
    "podAnnotations": {},
    "env": []
  },
  "serviceAccount": {
    "create": true,
    "name": "",
    "annotations": {}
  },
  "rbac": {
    "namespaced": false,
    "aggregate": true
  },
  "crds": {
    "enabled": true,
    "keep": true
  },
  "networkPolicy": {
    "enabled": false
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
  },
  "extraObjects": []
}
{{- end }}
