"""A fleet behind the real Envoy and the real endpoint picker, which `make test-epp` builds.

Envoy is configured by hand as the gateways configure it that take InferencePools as backends: an
external processor chooses the pod, and names it in a header.
"""

import json

import pytest

from argosy_bench.gateway.envoy import envoy_program
from local.cluster import picker
from local.demo.errors import CommandError
from local.demo.kube import await_answer
from tests.e2e.installed import complete, traffic

pytestmark = [pytest.mark.cluster, pytest.mark.epp]

FLEET = "pooled"
PORT = 10000
TYPES = "type.googleapis.com/envoy.extensions"
SPEC = {
    "routing": {"gateway": "epp"},
    "security": {"verifyPeers": False, "networkPolicy": False},
    "autoscaling": {"policy": "External"},
    "roles": {"colocated": {"replicas": {"min": 1, "max": 4}, "resources": {"gpu": 0}}},
}


@pytest.fixture(scope="module")
def programs():
    """What the tests run beside Argosy; both are fetched by `make test-epp`."""
    if not picker.folder().exists() or envoy_program() is None:
        pytest.fail("the picker or Envoy is missing: run make test-epp")


@pytest.fixture(scope="module")
def without_pools(argosy, programs):
    """A fleet in a cluster that does not know InferencePools."""
    argosy.apply(FLEET, **SPEC)
    yield FLEET
    argosy.kubectl("delete", "sd", FLEET, "--wait=false")


@pytest.fixture(scope="module")
def fleet(argosy, without_pools):
    """The same fleet, Ready with two engines once the cluster knows them."""
    argosy.until_condition(FLEET, "Stalled", "InferencePoolsUnknown")
    argosy.kube.kubectl("apply", "--server-side", "-f", str(picker.folder() / "crds"))
    argosy.kubectl("scale", "servingrole", f"{FLEET}-colocated", "--replicas=2")
    argosy.until_ready(FLEET, 90)
    argosy.until("two engines", lambda: len(engines(argosy)) == 2)
    return FLEET


@pytest.fixture(scope="module")
def url(argosy, fleet):
    """Envoy's address on loopback."""
    labels = {"app": "envoy"}
    container = {
        "name": "envoy",
        "image": "local/shell",
        "command": [str(envoy_program()), "--disable-hot-restart", "--log-level", "warning"],
        "args": ["--concurrency", "1", "--config-path", "/etc/envoy/envoy.json"],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/envoy"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    security = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    objects = [
        ("v1", "ConfigMap", {"data": {"envoy.json": json.dumps(config(argosy.namespace))}}),
        (
            "v1",
            "Pod",
            {
                "spec": {
                    "containers": [container],
                    "securityContext": security,
                    "volumes": [{"name": "config", "configMap": {"name": "envoy"}}],
                }
            },
        ),
        ("v1", "Service", {"spec": {"selector": labels, "ports": [{"port": PORT}]}}),
    ]
    for version, kind, body in objects:
        meta = {"name": "envoy", "labels": labels}
        whole = {"apiVersion": version, "kind": kind, "metadata": meta, **body}
        argosy.kubectl("apply", "-f", "-", given=json.dumps(whole))
    argosy.kubectl("wait", "pod/envoy", "--for=condition=Ready", "--timeout=60s")
    yield await_answer(argosy.publish("envoy", argosy.namespace, PORT), 30)
    argosy.kubectl("delete", "pod/envoy", "service/envoy", "configmap/envoy", "--wait=false")


def config(namespace):
    """One listener; the picker chooses the pod of each request."""
    processor = {
        "@type": f"{TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "10s"},
        "processing_mode": {
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_trailer_mode": "SEND",
        },
        "message_timeout": "30s",
    }
    router = {"@type": f"{TYPES}.filters.http.router.v3.Router"}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}
    manager = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "front",
        "route_config": {"virtual_hosts": [{"name": "a", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {"name": "envoy.filters.http.ext_proc", "typed_config": processor},
            {"name": "envoy.filters.http.router", "typed_config": router},
        ],
    }
    name = "envoy.filters.network.http_connection_manager"
    listener = {
        "name": "front",
        "address": address("0.0.0.0", PORT),
        "filter_chains": [{"filters": [{"name": name, "typed_config": manager}]}],
    }
    engines = {
        "name": "engines",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "5s",
        "original_dst_lb_config": {
            "use_http_header": True,
            "http_header_name": "x-gateway-destination-endpoint",
        },
    }
    host = f"{FLEET}-picker.{namespace}.svc.cluster.local"
    http = f"{TYPES}.upstreams.http.v3.HttpProtocolOptions"
    tls = f"{TYPES}.transport_sockets.tls.v3.UpstreamTlsContext"
    chooser = {
        "name": "picker",
        "type": "STRICT_DNS",
        "connect_timeout": "5s",
        "transport_socket": {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {"@type": tls, "common_tls_context": {"alpn_protocols": ["h2"]}},
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": http,
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "load_assignment": {
            "cluster_name": "picker",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(host, 9002)}}]}],
        },
    }
    return {"static_resources": {"listeners": [listener], "clusters": [engines, chooser]}}


def address(host, port):
    return {"socket_address": {"address": host, "port_value": port}}


def engines(argosy):
    """Names of the fleet's engine pods that are not being deleted."""
    return {pod["metadata"]["name"] for pod in argosy.pods(FLEET, "colocated")}


def scale(argosy, replicas):
    argosy.kubectl("scale", "servingrole", f"{FLEET}-colocated", f"--replicas={replicas}")
    argosy.until(f"{replicas} engines", lambda: len(engines(argosy)) == replicas, 90)
    argosy.until_ready(FLEET)


def test_without_pools_in_the_cluster_status_says_how_to_install_them(argosy, without_pools):
    for kind in ("Ready", "Stalled"):
        message = argosy.until_condition(FLEET, kind, "InferencePoolsUnknown")
        assert "kubectl apply -f https://" in message
    assert not argosy.pods(FLEET, "endpoint-picker")


def test_the_gateway_of_a_live_fleet_does_not_change(argosy, fleet):
    for gateway, name in (("argosy", FLEET), ("epp", "plain")):
        argosy.apply("plain")
        with pytest.raises(CommandError, match="cannot change on a live fleet"):
            patch(argosy, name, {"routing": {"gateway": gateway}, "security": SPEC["security"]})
    argosy.kubectl("delete", "sd", "plain", "--wait=false")


def patch(argosy, name, spec):
    argosy.kubectl("patch", "sd", name, "--type=merge", "-p", json.dumps({"spec": spec}))


def test_envoy_and_the_picker_answer_from_engines_of_the_fleet(argosy, url):
    asked = [complete(url, FLEET, prompt=f"question {n} " * 40) for n in range(12)]
    assert {answer.status_code for answer in asked} == {200}
    assert {answer.headers["x-argosy-pod"] for answer in asked} == engines(argosy)
    assert {answer.json()["usage"]["completion_tokens"] for answer in asked} == {8}


def test_streams_pass_through_both(url):
    with traffic(url, FLEET, per_s=6, tokens=40) as outcomes:
        pass
    assert outcomes
    assert set(outcomes) == {"ok"}


def test_a_prompt_goes_where_its_beginning_is_cached(url):
    """Six answers from one of two pods by chance alone: once in 32 runs without the scorer."""
    prompt = "the same long beginning of every prompt " * 60
    pods = [complete(url, FLEET, prompt=prompt).headers["x-argosy-pod"] for _ in range(8)]
    assert len(set(pods[2:])) == 1


def test_pods_leave_under_load_and_no_request_is_lost(argosy, url):
    scale(argosy, 3)
    with traffic(url, FLEET, per_s=8, tokens=60) as outcomes:
        scale(argosy, 1)
        argosy.until("its pods are gone", lambda: len(all_engines(argosy)) == 1, 90)
    assert len(outcomes) > 20
    assert set(outcomes) == {"ok"}


def test_a_new_revision_takes_over_under_load_and_no_request_is_lost(argosy, url):
    before = all_engines(argosy)
    with traffic(url, FLEET, per_s=8, tokens=60) as outcomes:
        patch(argosy, FLEET, {"engine": {"maxNumSeqs": 64}})
        argosy.until("other pods alone", lambda: before.isdisjoint(all_engines(argosy)), 90)
    assert len(outcomes) > 20
    assert set(outcomes) == {"ok"}


def all_engines(argosy):
    """Those that are being deleted included."""
    selector = f"serving.argosy.dev/fleet={FLEET},serving.argosy.dev/role=colocated"
    found = argosy.kubectl("get", "pods", "-l", selector, "-o", "name").split()
    return {name.removeprefix("pod/") for name in found}
