"""The CRDs before the real API server: it takes them, and refuses bad specs with our sentences."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from argosy_operator.api.model import dump
from argosy_operator.api.v1alpha1 import ServingDeployment
from local.cluster.build import released
from local.demo.kube import Kube
from tests.api.refused import LISTS, REFUSED, manifest

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
KUBECTL = Path(sys.executable).parent / "kubectl"
HELM = KUBECTL.with_name("helm")
CRDS = ("servingdeployments.serving.argosy.dev", "servingroles.serving.argosy.dev")


class Kubectl:
    """kubectl against one cluster; returns exit status and output."""

    def __init__(self, kubeconfig):
        self._environment = os.environ | {"KUBECONFIG": str(kubeconfig)}

    def __call__(self, *words, given=None):
        done = subprocess.run(
            [KUBECTL, *words],
            input=None if given is None else yaml.safe_dump(given),
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def kubectl(cluster):
    """The cluster with our CRDs: those of the chart where it is installed, else crds/."""
    run = Kubectl(cluster.kubeconfig)
    missing = run("get", "crd", *CRDS)[0] != 0
    if missing:
        Kube(cluster.kubeconfig).apply_crds(ROOT / "crds")
    yield run
    if missing:
        run("delete", "crd", *CRDS, "--timeout=30s")


def test_bad_specs_are_refused_with_our_sentences(kubectl, cluster):
    """All through one client: kubectl takes 0.3 s to start."""
    http, refused = Kube(cluster.kubeconfig).http, {}
    at = "/apis/serving.argosy.dev/v1alpha1/namespaces/default/servingdeployments"
    for case, (spec, name, _) in REFUSED.items():
        answer = http.post(
            f"{at}?dryRun=All&fieldValidation=Strict", json=manifest(spec, name), timeout=30
        )
        refused[case] = answer.json().get("message", "") if answer.status_code >= 400 else ""
    assert {
        case: refused[case] for case, (*_, says) in REFUSED.items() if says not in refused[case]
    } == {}


def test_defaults_of_the_api_server_are_the_models_defaults(kubectl):
    words = ("create", "--dry-run=server", "-o", "json", "-f", "-")
    code, output = kubectl(*words, given=manifest({}))
    assert code == 0, output
    spec = json.loads(output)["spec"]
    read = dump(ServingDeployment.model_validate(manifest({})).spec)
    # Lists have no default in the CRD: an absent one and an empty one are the same to users.
    del read["engine"]["args"], read["engine"]["env"]
    del read["model"]["servedNames"], read["model"]["adapters"]
    del read["autoscaling"]["schedules"]
    for typed in (read, *read["roles"].values()):
        del typed["gpuTypes"]
    assert spec == read


ROUTE = ROOT / "examples" / "httproute.yaml"
EXAMPLES = sorted({*(ROOT / "examples").glob("*.yaml")} - {ROUTE})
FLEETS = [
    item
    for path in EXAMPLES
    for item in yaml.safe_load_all(path.read_text("utf-8"))
    if item["kind"] == "ServingDeployment"
]
FLEETS.append(manifest(LISTS))


def lists(value, path=""):
    """Every list in the value, by its path."""
    if isinstance(value, list):
        return {path: value}
    if not isinstance(value, dict):
        return {}
    return {p: one for key, v in value.items() for p, one in lists(v, f"{path}.{key}").items()}


def test_the_lists_of_fleets_are_read_back_as_they_were_applied(kubectl):
    words = ("apply", "--dry-run=server", "-o", "json", "-f", "-")
    given = {"apiVersion": "v1", "kind": "List", "items": FLEETS}
    code, output = kubectl(*words, given=given)
    assert code == 0, output
    for fleet, item in zip(FLEETS, json.loads(output)["items"], strict=True):
        applied, read = lists(fleet["spec"]), lists(item["spec"])
        assert {path: read[path] for path in applied} == applied


def test_every_example_is_taken(kubectl):
    files = [word for path in EXAMPLES for word in ("-f", str(path))]
    code, output = kubectl("apply", "--dry-run=server", *files)
    assert code == 0, output


# CRDs of the Gateway API, which are not of Kubernetes.
GATEWAY_API = (
    "sigs.k8s.io/gateway-api", "v1.6.3", "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc=",
)  # fmt: skip
ROUTES = "gateway.networking.k8s.io_httproutes.yaml"


@pytest.fixture
def gateway_api(cluster, kubectl):
    path = released(*GATEWAY_API) / "config" / "crd" / "standard" / ROUTES
    Kube(cluster.kubeconfig).apply_crds(path)
    yield
    kubectl("delete", "-f", str(path), "--timeout=30s")


@pytest.mark.usefixtures("gateway_api")
def test_the_example_of_a_route_is_taken_where_the_gateway_api_is(kubectl):
    code, output = kubectl("apply", "--dry-run=server", "-f", str(ROUTE))
    assert code == 0, output
    route = yaml.safe_load(ROUTE.read_text("utf-8"))
    route["spec"]["rules"][0]["timeouts"]["request"] = "never"
    code, output = kubectl("apply", "--dry-run=server", "-f", "-", given=route)
    assert code != 0
    assert "timeouts.request" in output


# CRDs of the Prometheus Operator.
PROMETHEUS_OPERATOR = (
    "github.com/prometheus-operator/prometheus-operator", "v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
)  # fmt: skip
MONITORING = {"podmonitors": "podMonitor", "prometheusrules": "prometheusRule"}


@pytest.fixture
def monitoring_api(cluster, kubectl):
    folder = released(*PROMETHEUS_OPERATOR) / "example" / "prometheus-operator-crd"
    paths = [folder / f"monitoring.coreos.com_{kind}.yaml" for kind in MONITORING]
    for path in paths:
        Kube(cluster.kubeconfig).apply_crds(path)
    yield
    for path in paths:
        kubectl("delete", "-f", str(path), "--timeout=30s")


@pytest.mark.usefixtures("monitoring_api")
def test_the_charts_objects_for_the_prometheus_operator_are_taken(kubectl):
    on = [f"monitoring.{part}.enabled=true" for part in MONITORING.values()]
    settings = ",".join([*on, "monitoring.checkAPI=false", "crds.enabled=false"])
    words = ("template", "argosy", "charts/argosy", "-n", "default", "--set", settings)
    text = subprocess.run([HELM, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    objects = [o for o in yaml.safe_load_all(text.stdout) if o and "monitoring" in o["apiVersion"]]
    assert {o["kind"] for o in objects} == {"PodMonitor", "PrometheusRule"}
    given = {"apiVersion": "v1", "kind": "List", "items": objects}
    code, output = kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", given=given)
    assert code == 0, output


def test_a_role_scales_and_absent_replicas_mean_hold(kubectl):
    role = {
        "apiVersion": "serving.argosy.dev/v1alpha1",
        "kind": "ServingRole",
        "metadata": {"name": "scaled-decode", "namespace": "default"},
        "spec": {"fleet": "scaled", "role": "decode"},
    }
    code, output = kubectl("create", "-f", "-", given=role)
    assert code == 0, output
    try:
        first = kubectl("get", "sr", "scaled-decode", "-o", "jsonpath={.spec.replicas}")
        assert first == (0, "")
        assert kubectl("scale", "sr/scaled-decode", "--replicas=3")[0] == 0
        then = kubectl("get", "sr", "scaled-decode", "-o", "jsonpath={.spec.replicas}")
        assert then == (0, "3")
    finally:
        kubectl("delete", "sr", "scaled-decode")
