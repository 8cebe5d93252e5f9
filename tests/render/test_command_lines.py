"""What the operator renders is what the programs parse: their own parsers read it."""

import json
from pathlib import Path

import pytest

from argosy_engine.cli import parse as parse_engine
from argosy_gateway.cli import parse as parse_gateway
from argosy_gateway.config import Slo, SloClass
from argosy_gateway.options import KEY
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.names import SETTINGS_KEY
from argosy_operator.render import gateway
from tests.render.fleets import IMAGES, deployment, fleet

ROOT = Path(__file__).parents[2]
EVERYTHING = fleet(
    model={"uri": "pvc://models/org/model-7b", "servedNames": ["org/model-7b", "m7"]},
    engine={
        "dtype": "bfloat16",
        "maxModelLen": 4096,
        "maxNumSeqs": 64,
        "maxNumBatchedTokens": 1024,
        "maxBodyBytes": 20_000_000,
        "args": ["--block-size", "16", "--threads=2"],
    },
    kvTransfer={
        "timeout": "1500ms",
        "onFailure": "colocated",
        "transport": "tcp",
    },
    slo={
        "ttft": {"target": "2s"},
        "tpot": {"target": "50ms"},
        "classes": [
            {
                "name": "batch",
                "ttft": {"target": "1m"},
                "tpot": {"target": "200ms"},
                "priority": -7,
            }
        ],
    },
    routing={
        "strategy": "roundRobin",
        "maxQueue": 77,
        "queueTimeout": "2500ms",
        "shedTtftPercent": 150,
        "queue": "deadline",
    },
    drain={"timeout": "2m", "mode": "migrate"},
)
SLO = {"ttft": {"target": "2s"}, "tpot": {"target": "50ms"}}
SIMULATED = fleet(model={"uri": "sim://opt-13b-a100"}, mode="colocated")


def settings(one):
    """The words that the fleet's gateways take from their ConfigMap."""
    (found,) = (o for o in gateway.objects(one, IMAGES) if o["kind"] == "ConfigMap")
    process = ["run", "--fleet", one.name, "--namespace", one.namespace]
    return [*process, *json.loads(found["data"][SETTINGS_KEY])]


def words(deployment):
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["argosy"]
    return container["args"]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_engine_understands_every_field_of_the_spec(role):
    rendered = words(deployment(EVERYTHING, role))
    assert rendered[:2] == ["engine", "serve"]
    config = parse_engine(rendered[2:])
    assert (config.model, config.served_name) == ("/models/org/model-7b", "chat")
    assert (config.role, config.dtype, config.load_format) == (role, "bfloat16", "auto")
    assert (config.max_model_len, config.max_num_seqs) == (4096, 64)
    assert (config.max_num_batched_tokens, config.block_size, config.threads) == (1024, 16, 2)
    assert config.max_body_bytes == 20_000_000
    assert (config.lease_s, config.kv_timeout_s, config.drain_timeout_s) == (4.5, 2, 120)
    assert config.kv_on_failure == "colocated"
    assert config.kv_transport == "tcp"


@pytest.mark.parametrize(("role", "size"), [("prefill", 4), ("decode", 2)])
def test_each_role_has_its_own_number_of_gpus_for_the_kv_heads(role, size):
    sizes = {"prefill": {"parallelism": {"tensor": 4}}, "decode": {"parallelism": {"tensor": 2}}}
    split = fleet(model={"uri": "pvc://models/llama"}, mode="disaggregated", roles=sizes)
    assert parse_engine(words(deployment(split, role))[2:]).tensor_parallel_size == size
    usual = words(deployment(fleet(), role))
    assert not any(word.startswith("--tensor-parallel-size") for word in usual)


def test_both_programs_find_the_certificate_where_the_kubelet_mounts_it():
    sealed = fleet(security={"tls": {"secretName": "chat-tls"}})
    front = gateway.objects(sealed, IMAGES, certificate="chat-tls")[-1]
    made = [(deployment(sealed, role), parse_engine, 2) for role in ("prefill", "decode")]
    for rendered, parse, first in [*made, (front, parse_gateway, 1)]:
        container = rendered["spec"]["template"]["spec"]["containers"][0]
        mounted = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        assert str(parse(words(rendered)[first:]).tls_dir) == mounted["tls"]


def test_the_gateway_understands_every_field_of_the_spec():
    process = parse_gateway(words(gateway.objects(EVERYTHING, IMAGES)[-1])[1:])
    assert (process.fleet, process.namespace) == ("chat", "prod")
    assert process.settings_name == "chat-gateway"
    config = parse_gateway(settings(EVERYTHING))
    assert config.served_names == ("org/model-7b", "m7")
    assert (config.strategy, config.max_queue) == ("roundRobin", 77)
    assert (config.queue_timeout_s, config.shed_ttft_factor) == (2.5, 1.5)
    assert (config.queue, config.engine_places) == ("deadline", 64)
    assert config.slo_classes == (SloClass("batch", Slo(60.0, 0.2), -7),)
    assert config.limits.body_bytes == 20_000_000
    assert (config.drain_timeout_s, config.drain_mode) == (120, "migrate")
    assert config.slo is not None
    assert (config.slo.ttft_s, config.slo.tpot_s) == (2.0, 0.05)
    rendered = (names.GATEWAY_PORT, names.GATEWAY_ADMIN_PORT)
    assert (config.port, config.admin_port) == rendered


def test_the_gateway_is_told_the_names_of_adapters():
    model = {"uri": "pvc://models/a", "adapters": [{"name": "sql", "uri": "pvc://models/sql"}]}
    one = fleet(model=model, engine={"type": "vllm", "image": "vllm:1"})
    assert parse_gateway(settings(one)).adapters == ("sql",)


@pytest.mark.parametrize(
    ("type_", "mode", "passes"),
    [("vllm", "colocated", True), ("vllm", "disaggregated", False), ("argosy", "colocated", False)],
)
def test_gateways_of_colocated_pods_of_other_engines_pass_other_paths_on(type_, mode, passes):
    one = fleet(mode=mode, engine={"type": type_, "image": "engine:1"})
    assert parse_gateway(settings(one)).pass_other_paths is passes


@pytest.mark.parametrize("spec", [{"slo": SLO, "routing": {"queue": "none"}}, {"slo": None}])
def test_a_gateway_without_a_queue_or_without_an_slo_gets_no_flag_about_one(spec):
    rendered = settings(fleet(engine={"maxNumSeqs": 64}, **spec))
    assert not {"--queue", "--engine-max-num-seqs"} & set(rendered)
    assert parse_gateway(rendered).queue == "none"


@pytest.mark.parametrize("policy", ["Goodput", "External", "None"])
def test_whoever_scales_a_fleet_with_an_slo_its_gateway_queues_by_deadline(policy):
    rendered = parse_gateway(settings(fleet(slo=SLO, autoscaling={"policy": policy})))
    assert (rendered.queue, rendered.slo) == ("deadline", Slo(2.0, 0.05))


def test_the_largest_body_is_the_same_for_gateway_and_engine_where_the_spec_says_nothing():
    front = parse_gateway(settings(SIMULATED))
    back = parse_engine(words(deployment(SIMULATED, "colocated"))[2:])
    assert front.limits.body_bytes == back.max_body_bytes == 8 << 20
    field = ServingDeployment.model_json_schema()["$defs"]["Engine"]["properties"]["maxBodyBytes"]
    assert f"Default: {back.max_body_bytes} (8 MiB)" in field["description"].replace("\n", " ")


def test_both_programs_agree_on_the_key_of_the_settings():
    assert SETTINGS_KEY == KEY
    assert f"`{KEY}`" in (ROOT / "designs/0001-seams.md").read_text()


@pytest.mark.parametrize(
    "edit",
    [
        {"slo": None},
        {"slo": {"ttft": {"target": "9s"}, "tpot": {"target": "90ms"}}},
        {"drain": {"timeout": "200s"}},
        {"drain": {"mode": "finish"}},
        {"autoscaling": {"scaleToZero": {"wait": "4m"}}},
        {"engine": {"maxBodyBytes": 90_000, "maxNumSeqs": 5}},
        {"routing": {"strategy": "kvAware", "maxQueue": 5, "queueTimeout": "9s", "queue": "none"}},
    ],
)
def test_what_the_spec_says_of_requests_is_in_the_settings_and_in_no_pod_template(edit):
    plain = fleet(slo=SLO)
    edited = fleet(**{"slo": SLO, **edit})
    one, other = (gateway.objects(each, IMAGES)[-1]["spec"] for each in (plain, edited))
    assert one == other
    assert settings(plain) != settings(edited) or edit == {"drain": {"mode": "finish"}}


@pytest.mark.parametrize("timeout", ["40s", "300s", "59m", "1h", "24h"])
def test_the_kubelet_leaves_a_gateway_the_longest_drain_that_its_settings_may_ask_for(timeout):
    one = fleet(drain={"timeout": timeout})
    drain_s = parse_gateway(settings(one)).drain_timeout_s
    pod = gateway.objects(one, IMAGES)[-1]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > drain_s + gateway.DEREGISTER_S


@pytest.mark.parametrize(
    ("timeout", "grace_s"),
    [("40s", 75), ("60s", 75), ("61s", 315), ("300s", 315), ("10m", 915), ("1h", 3615)],
)
def test_a_namespace_waits_for_gateways_as_long_as_drains_like_theirs_need(timeout, grace_s):
    """Kubernetes waits for half of the longest grace of its pods, also when all have gone."""
    one = fleet(drain={"timeout": timeout})
    pod = gateway.objects(one, IMAGES)[-1]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == grace_s
