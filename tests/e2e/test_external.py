"""Policy External: the HorizontalPodAutoscaler of Kubernetes scales a ServingRole by a measured
metric, up under load and down after it."""

import base64
import datetime as dt
from pathlib import Path

import pytest
import yaml

from local.cluster.config.pki import issue, make_authority
from tests.e2e.installed import SYSTEM, traffic

pytestmark = pytest.mark.cluster
ADAPTER = Path(__file__).with_name("external_metrics.py")
METRIC = "vllm:num_requests_running"
PROMETHEUS = f"http://argosy-prometheus.{SYSTEM}.svc:9090"


def adapter_of(namespace):
    """The pod that serves Prometheus' numbers as external metrics, and its APIService."""
    certificate, key = issue(
        make_authority(dt.datetime.now(dt.UTC)), "adapter", "", ["adapter"], dt.datetime.now(dt.UTC)
    )
    files = {"adapter.py": ADAPTER.read_bytes(), "tls.crt": certificate, "tls.key": key}
    words = ["adapter.py", PROMETHEUS, "tls.crt", "tls.key"]
    container = {
        "name": "main",
        "image": "local/shell:1",
        "workingDir": "/adapter",
        "command": ["python3", "-u", *words],
        "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1},
        "volumeMounts": [{"name": "files", "mountPath": "/adapter"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    meta = {"name": "adapter", "labels": {"app": "adapter"}}
    encoded = {name: base64.b64encode(data).decode() for name, data in files.items()}
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": encoded},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": {
                "securityContext": security,
                "containers": [container],
                "volumes": [{"name": "files", "secret": {"secretName": "adapter"}}],
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"selector": {"app": "adapter"}, "ports": [{"port": 443, "targetPort": 8443}]},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
            "spec": {
                "group": "external.metrics.k8s.io",
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {"name": "adapter", "namespace": namespace},
            },
        },
    ]


@pytest.fixture
def adapter(argosy):
    """External metrics are served."""
    objects = yaml.safe_dump_all(adapter_of(argosy.namespace))
    argosy.kubectl("apply", "-f", "-", given=objects)
    try:
        words = ("--for=condition=Available", "--timeout=60s")
        argosy.kubectl("wait", "apiservice/v1beta1.external.metrics.k8s.io", *words)
        yield
    finally:
        # An APIService without its server would keep every namespace from ending.
        argosy.kubectl("delete", "-f", "-", "--wait=false", given=objects)


def autoscaler(target):
    """Two running requests a replica, three replicas at most, no second thoughts."""
    metric = {"metric": {"name": METRIC}, "target": {"type": "AverageValue", "averageValue": "2"}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": target},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "serving.argosy.dev/v1alpha1",
                "kind": "ServingRole",
                "name": target,
            },
            "minReplicas": 1,
            "maxReplicas": 3,
            "metrics": [{"type": "External", "external": metric}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    }


def test_a_horizontal_pod_autoscaler_scales_a_role_up_and_down_and_nothing_is_lost(argosy, adapter):
    fleet = "external"
    argosy.apply(fleet, autoscaling={"policy": "External"})
    argosy.until_ready(fleet)
    argosy.kubectl("apply", "-f", "-", given=yaml.safe_dump(autoscaler(f"{fleet}-colocated")))
    try:
        with traffic(argosy.url(fleet), fleet, per_s=4, tokens=100) as outcomes:
            argosy.until(
                "3 ready replicas",
                lambda: argosy.fleet(fleet)["status"]["roles"]["colocated"]["ready"] == 3,
                90,
            )
            assert argosy.condition(fleet, "ScalingActive")["reason"] == "ExternalOwner"
        assert outcomes
        with traffic(argosy.url(fleet), fleet, per_s=0.5, tokens=20) as after:
            argosy.until("1 pod", lambda: len(argosy.pods(fleet, "colocated")) == 1, 90)
        assert {*outcomes, *after} == {"ok"}, (outcomes, after)
    finally:
        argosy.kubectl("delete", f"hpa/{fleet}-colocated", f"sd/{fleet}", "--wait=false")
