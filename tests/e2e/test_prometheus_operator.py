"""The chart's PodMonitors under the real Prometheus Operator: what it makes of them is scraped, and
the fleet scales.

The operator and the Prometheus that it makes run as pods, of the manifests that it releases. Their
images are programs that are built here: images cannot be pulled.
"""

import json
import shutil

import httpx
import pytest
import yaml

from local.cluster.build import program_of, released
from tests.api.test_api_server import PROMETHEUS_OPERATOR
from tests.e2e.installed import SYSTEM, traffic

pytestmark = pytest.mark.cluster

MODULE, VERSION, _ = PROMETHEUS_OPERATOR
API, CLIENT = (f"{MODULE}/pkg/{name} {VERSION}" for name in ("apis/monitoring", "client"))
SIBLINGS = (
    f"{API} h1:oY+F5FZFmCjCyzkHWPjVQpzvnvEB/0FP+iyzDUUlqFc=",
    f"{API}/go.mod h1:VB7wtBmDT6W2RJHzsvPZlBId+EnmeQA0d33fFTXvraM=",
    f"{CLIENT} h1:OdW3Vnmoa2pM5PfRyQaSEO+UN5yamEUS1MuhwE0PxbY=",
    f"{CLIENT}/go.mod h1:5ctipSFkXKeXig01Or0aXKNaaBQFWZAAK1zzYWz9YZY=",
)
RELEASE = "kube-prometheus-stack"
SELECTED = {"matchLabels": {"release": RELEASE}}
MONITORING = "monitoring"
# As kube-prometheus-stack writes it.
PROMETHEUS = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "Prometheus",
    "metadata": {"name": "stack"},
    "spec": {
        "serviceAccountName": "prometheus",
        "podMonitorSelector": SELECTED,
        "podMonitorNamespaceSelector": {},
        "ruleSelector": SELECTED,
        "ruleNamespaceSelector": {},
        "securityContext": {
            "fsGroup": 2000,
            "runAsGroup": 2000,
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    },
}


@pytest.fixture(scope="module")
def operator_images(cluster, tmp_path_factory):
    """The nodes know the images that the manifests of the Prometheus Operator name."""
    file = cluster.files.images
    known = json.loads(file.read_text())
    known["quay.io/prometheus/prometheus"] = known["docker.io/prom/prometheus"]
    for image, program in {
        "prometheus-operator": "operator",
        "prometheus-config-reloader": "prometheus-config-reloader",
    }.items():
        root = tmp_path_factory.mktemp(program)
        (root / "bin").mkdir()
        built = program_of(*PROMETHEUS_OPERATOR, f"./cmd/{program}", SIBLINGS)
        shutil.copy(built, root / "bin" / program)
        known[f"quay.io/prometheus-operator/{image}"] = {
            "root": str(root),
            "entrypoint": [f"/bin/{program}"],
            "user": 65534,
        }
    written = file.with_suffix(".new")
    written.write_text(json.dumps(known))
    written.replace(file)


@pytest.fixture
def stack(argosy, operator_images):
    """A Prometheus of the Prometheus Operator, in a namespace of its own; gives its address."""
    kube, folder = argosy.kube, released(*PROMETHEUS_OPERATOR) / "example"
    kube.apply_crds(folder / "prometheus-operator-crd")
    kube.kubectl("create", "namespace", MONITORING)
    manifests = "\n---\n".join(
        path.read_text().replace("namespace: default", f"namespace: {MONITORING}")
        for part in ("prometheus-operator", "prometheus")
        for path in sorted((folder / "rbac" / part).glob("*-*.yaml"))
        if "service-monitor" not in path.name
    )
    kube.kubectl("apply", "-n", MONITORING, "-f", "-", given=manifests)
    kube.kubectl("apply", "-n", MONITORING, "-f", "-", given=yaml.safe_dump(PROMETHEUS))
    available = ("--for=condition=Available", "--timeout=120s")
    kube.kubectl("wait", "-n", MONITORING, "prometheus/stack", *available)
    yield f"http://prometheus-operated.{MONITORING}.svc:9090"
    kube.kubectl("delete", "namespace", MONITORING, "--wait=false")
    kube.kubectl("delete", "-n", MONITORING, "--ignore-not-found", "-f", "-", given=manifests)
    kube.kubectl("delete", "--wait=false", "-f", str(folder / "prometheus-operator-crd"))


@pytest.fixture
def monitored(stack, install_chart):
    """The chart has no Prometheus of its own, and brings PodMonitors and rules."""
    settings = {
        "prometheus.embedded": "false",
        "prometheus.url": stack,
        "monitoring.podMonitor.enabled": "true",
        "monitoring.podMonitor.interval": "1s",
        "monitoring.podMonitor.labels.release": RELEASE,
        "monitoring.prometheusRule.enabled": "true",
        "monitoring.prometheusRule.labels.release": RELEASE,
    }
    install_chart("--set", ",".join(f"{name}={value}" for name, value in settings.items()))
    yield
    install_chart()


@pytest.mark.long
@pytest.mark.usefixtures("monitored")
@pytest.mark.timeout(1800)  # both programs are built first
def test_a_fleet_scales_on_what_pod_monitors_scrape(argosy):
    argosy.apply(
        "monitored",
        mode="disaggregated",
        slo={"ttft": {"target": "500ms"}, "tpot": {"target": "40ms"}},
        autoscaling={"interval": "2s", "coldStart": "6s"},
        metrics={"scrapeInterval": "1s", "rateWindow": "5s"},
    )
    argosy.until_ready("monitored")
    argosy.until_condition("monitored", "MetricsAvailable", "Idle", 120)
    url = argosy.publish("prometheus-operated", MONITORING, 9090)

    def ask(path, **words):
        answer = httpx.get(f"{url}/api/v1/{path}", params=words, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    by = ("job", "namespace", "fleet", "role")
    rows = ask("query", query=f"count by ({', '.join(by)}) (up == 1)")["result"]
    of_fleets = (f"{SYSTEM}/argosy-fleets", argosy.namespace, "monitored")
    assert {tuple(row["metric"].get(k, "") for k in by): row["value"][1] for row in rows} == {
        (*of_fleets, "gateway"): "1",
        (*of_fleets, "prefill"): "1",
        (*of_fleets, "decode"): "1",
        (f"{SYSTEM}/argosy-operator", SYSTEM, "", ""): "2",
    }
    loaded = {rule["name"] for group in ask("rules")["groups"] for rule in group["rules"]}
    assert "ArgosyMetricsBlind" in loaded
    with traffic(argosy.url("monitored"), "monitored", per_s=8, tokens=150):
        argosy.until("2 decode pods", lambda: len(argosy.pods("monitored", "decode")) >= 2, 60)
        assert argosy.condition("monitored", "MetricsAvailable")["status"] == "True"
    argosy.kubectl("delete", "sd", "monitored", "--wait=false")
