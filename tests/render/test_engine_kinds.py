"""An engine kind decides how the container starts and where it answers, and nothing else."""

import json
import re
from itertools import pairwise

import pytest

from argosy_engine.cli import parse
from argosy_gateway.pods.endpoints import endpoint_of_pod
from argosy_operator.api.v1alpha1.engine import OWN_FLAGS, RENDERED_ENV, RENDERED_FLAGS
from argosy_operator.core.snapshot.template import refusals
from argosy_operator.render import workload
from argosy_operator.render.common import identity_env
from argosy_operator.render.engines import ARGOSY, SGLANG, VLLM, EnginePod
from argosy_operator.render.engines import KINDS as OF_TYPE
from tests.engine.processes import sim_engines
from tests.gateway.pods.test_endpoints import POD
from tests.render.fleets import IMAGES, fleet

SIZES = {"maxModelLen": 4096, "maxNumSeqs": 8, "maxNumBatchedTokens": 1024}


def of_type(name, *, image="peer:1", **spec):
    """A fleet whose pods run the engine `name`."""
    asked = {"type": name, "image": image, **SIZES}
    return fleet(**{"mode": "colocated", "engine": asked, **spec})


OTHERS = {"vllm": VLLM, "sglang": SGLANG}


def rendered(one):
    """The Deployments of all roles of the fleet."""
    return [
        workload.deployment(EnginePod.of(one, role, "0123abcd", IMAGES), 1)
        for role, _ in one.spec.active_roles()
    ]


def container(deployment):
    return deployment["spec"]["template"]["spec"]["containers"][0]


def test_the_type_of_the_spec_chooses_the_kind():
    assert dict(OF_TYPE) == {"argosy": ARGOSY, **OTHERS}
    for name, kind in OF_TYPE.items():
        one = EnginePod.of(of_type(name), "colocated", "0123abcd", IMAGES)
        assert container(workload.deployment(one))["command"] == list(kind.command)
        written = {arg for arg in kind.args(one) if arg.startswith("--")}
        assert written <= set(OWN_FLAGS[name]), "a second one in engine.args would win, or clash"


def test_the_arguments_of_vllm():
    one = of_type("vllm", drain={"timeout": "90s"})
    made = container(rendered(one)[0])
    assert made["command"] == ["vllm", "serve"]
    assert made["args"] == [
        "/models/some/model",
        *("--served-model-name", "chat"),
        *("--port", "8000", "--dtype", "auto"),
        *("--max-model-len", "4096", "--max-num-seqs", "8", "--max-num-batched-tokens", "1024"),
        *("--shutdown-timeout", "90", "--api-key", "$(POD_UID)"),
    ]


def with_adapters(*uris, **spec):
    """A fleet of vLLM with adapters a, b, … at these places."""
    adapters = [{"name": name, "uri": uri} for name, uri in zip("abc", uris, strict=False)]
    model = {"uri": "pvc://models/some/model", "adapters": adapters}
    return of_type("vllm", model=model, **spec)


@pytest.mark.parametrize("mode", ["colocated", "disaggregated"])
def test_vllm_loads_adapters_from_the_models_claim_and_from_others(mode):
    one = with_adapters("pvc://models/lora/a", "pvc://other/b", "pvc://other/c/d", mode=mode)
    for deployment in rendered(one):
        made, pod = container(deployment), deployment["spec"]["template"]["spec"]
        at = made["args"].index("--enable-lora")
        assert made["args"][at + 1 : at + 6] == [
            "--lora-modules",
            "a=/models/lora/a",
            "b=/etc/argosy/adapters/other/b",
            "c=/etc/argosy/adapters/other/c/d",
            "--port",
        ]
        claims = [v["persistentVolumeClaim"] for v in pod["volumes"] if v["name"][:2] == "ad"]
        assert claims == [{"claimName": "other", "readOnly": True}]
        path = "/etc/argosy/adapters/other"
        mount = {"name": "adapters-0", "mountPath": path, "readOnly": True}
        assert mount in made["volumeMounts"]


def test_gateways_read_the_adapters_from_the_pods_that_are_rendered():
    (deployment,) = rendered(with_adapters("pvc://models/lora/a", "pvc://other"))
    found = endpoint_of_pod({**POD, "spec": deployment["spec"]["template"]["spec"]})
    assert found is not None
    assert (found.model, found.adapters) == ("chat", {"a", "b"})


def test_the_arguments_of_sglang():
    made = container(rendered(of_type("sglang"))[0])
    assert made["command"] == ["python3", "-m", "sglang.launch_server"]
    assert made["args"] == [
        *("--model-path", "/models/some/model"),
        *("--served-model-name", "chat"),
        *("--port", "8000", "--dtype", "auto"),
        *("--context-length", "4096", "--max-running-requests", "8"),
        *("--chunked-prefill-size", "1024", "--api-key", "$(POD_UID)"),
        *("--host", "0.0.0.0", "--enable-metrics"),
    ]


@pytest.mark.parametrize("name", OTHERS)
def test_pods_of_other_engines_have_one_port_a_key_and_a_note_of_their_type(name):
    deployment = rendered(of_type(name))[0]
    made = container(deployment)
    assert made["image"] == "peer:1"
    assert made["ports"] == [{"name": "http", "containerPort": 8000}]
    probes = [made[name]["httpGet"] for name in made if name.endswith("Probe")]
    assert probes == [{"path": "/health", "port": 8000}] * 3
    uid = {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    assert made["env"].count(uid) == 1
    notes = deployment["spec"]["template"]["metadata"]["annotations"]
    assert notes["serving.argosy.dev/engine"] == name
    assert (notes["prometheus.io/port"], notes["prometheus.io/path"]) == ("8000", "/metrics")


def nixl(kv_role):
    config = {
        "kv_connector": "NixlConnector",
        "kv_role": kv_role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"kv_lease_duration": 60},
    }
    return ["--kv-transfer-config", json.dumps(config)]


HANDOVER = {
    "vllm": {"prefill": nixl("kv_producer"), "decode": nixl("kv_consumer")},
    "sglang": {
        role: ["--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl"]
        for role in ("prefill", "decode")
    },
}
PORTS = {"vllm": ("nixl", 5600), "sglang": ("bootstrap", 8998)}


@pytest.mark.parametrize("name", OTHERS)
def test_disaggregated_pods_of_other_engines_get_their_handover_by_role(name):
    one = of_type(name, mode="disaggregated")
    for (role, _), deployment in zip(one.spec.active_roles(), rendered(one), strict=True):
        made = container(deployment)
        wanted = HANDOVER[name][role]
        assert made["args"][-len(wanted) :] == wanted
        port, number = PORTS[name]
        assert {"name": port, "containerPort": number} in made["ports"]
        ports = {"name": "UCX_TCP_PORT_RANGE", "value": "5700-5899"}
        assert ports in made["env"]


def test_decode_pods_of_vllm_find_prefill_pods_by_their_own_address():
    made = container(rendered(of_type("vllm", mode="disaggregated"))[0])
    names_ = [env["name"] for env in made["env"]]
    host = next(env for env in made["env"] if env["name"] == "VLLM_NIXL_SIDE_CHANNEL_HOST")
    assert host["value"] == "$(POD_IP)"
    # The kubelet fills in only what stands before it.
    assert names_.index("POD_IP") < names_.index("VLLM_NIXL_SIDE_CHANNEL_HOST")


def shm_of(deployment):
    """The shared memory of the engine's container."""
    spec = deployment["spec"]["template"]["spec"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container(deployment)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    return volumes[mounts["/dev/shm"]] if "/dev/shm" in mounts else None


def test_vllm_on_several_gpus_has_shared_memory_which_a_template_may_bound():
    bounded = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}
    roles = {
        "prefill": {"parallelism": {"tensor": 1}, "resources": {"gpu": 1}},
        "decode": {"parallelism": {"tensor": 4}, "resources": {"gpu": 4}},
    }
    alone, several = map(shm_of, rendered(of_type("vllm", mode="disaggregated", roles=roles)))
    assert (alone, several) == (None, {"name": "shm", "emptyDir": {"medium": "Memory"}})
    roles["decode"]["template"] = {"spec": {"volumes": [bounded]}}
    _, several = map(shm_of, rendered(of_type("vllm", mode="disaggregated", roles=roles)))
    assert several == bounded


def test_a_prefill_pod_has_longer_than_vllm_takes_for_its_answers_and_leases():
    one = of_type("vllm", mode="disaggregated", drain={"timeout": "90s"})
    for deployment in rendered(one):
        args = container(deployment)["args"]
        waits_s = int(args[args.index("--shutdown-timeout") + 1])
        assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > waits_s


def test_what_the_kv_of_vllm_depends_on_is_the_same_in_both_roles():
    """vLLM answers with garbage where block sizes differ. Only the tensor parallelism may."""
    asked = {
        "type": "vllm",
        "image": "peer:1",
        "dtype": "bfloat16",
        "args": ["--block-size=64", "--kv-cache-dtype=fp8"],
    }
    other = {"name": "engine", "image": "other:2", "command": ["x"], "args": ["--block-size=128"]}
    roles = {
        "prefill": {
            "parallelism": {"tensor": 2},
            "resources": {"gpu": 2, "memory": "64Gi"},
            "replicas": {"min": 2, "max": 3},
            "template": {"spec": {"containers": [other]}},
        },
        "decode": {"parallelism": {"tensor": 4}, "resources": {"gpu": 4}},
    }
    one = of_type("vllm", mode="disaggregated", engine=asked, roles=roles)
    prefill, decode = map(container, rendered(one))
    assert (prefill["image"], prefill["command"]) == (decode["image"], decode["command"])
    by_role = {"--tensor-parallel-size", "--kv-transfer-config"}
    assert without(prefill["args"], by_role) == without(decode["args"], by_role)
    assert "--block-size=64" in prefill["args"]
    refused = {refusal.place[-1] for refusal in refusals(one.spec)}
    assert refused == {"image", "command", "args"}


def without(args, flags):
    """The arguments but for these flags and their values."""
    return [
        arg for before, arg in pairwise(["", *args]) if arg not in flags and before not in flags
    ]


def test_our_engine_knows_the_flags_that_the_api_refuses(capsys):
    with pytest.raises(SystemExit):
        parse(["--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert set(RENDERED_FLAGS) - known == set()


def test_the_api_refuses_exactly_the_environment_that_is_rendered():
    assert {env["name"] for env in identity_env()} | {"POD_UID"} == set(RENDERED_ENV)


def test_our_engine_answers_where_its_kind_says():
    config = parse(["--model", "sim:x", "--served-name", "m"])
    ports = {"http": config.port, "admin": config.admin_port, "kv": config.kv_port}
    assert dict(ARGOSY.ports) == ports
    with sim_engines("prefill") as (engine,):
        for endpoint in (ARGOSY.ready, ARGOSY.live, ARGOSY.metrics):
            assert endpoint.port == config.admin_port
            assert engine.page(endpoint.path).status_code == 200
