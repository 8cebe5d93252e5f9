"""An engine kind decides how the container starts and where it answers, and nothing else."""

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import kubernetes_validate
import pytest

from argosy_engine.cli import parse
from argosy_operator.api.v1alpha1.engine import OWN_FLAGS, RENDERED_ENV, RENDERED_FLAGS
from argosy_operator.core.plan import plan
from argosy_operator.core.snapshot.actions import Create
from argosy_operator.render import peers, workload
from argosy_operator.render.common import identity_env
from argosy_operator.render.engines.argosy import ARGOSY
from argosy_operator.render.engines.kind import EngineKind, EnginePod, HttpEndpoint
from argosy_operator.render.engines.openai import SGLANG, VLLM
from argosy_operator.render.engines.table import KINDS as OF_TYPE
from tests.engine.processes import sim_engines
from tests.render.fleets import IMAGES, fleet
from tests.render.restricted import offences
from tests.support.model import Model
from tests.support.model import fleet as model_fleet

FLEETS = {
    "disaggregated": fleet(engine={"maxModelLen": 4096, "maxNumSeqs": 8, "maxBodyBytes": 1 << 20}),
    "colocated": fleet(mode="colocated", engine={"args": ["--seed=1"]}),
    "simulated": fleet(model={"uri": "sim://opt-13b-a100"}, mode="colocated"),
}
SIZES = {"maxModelLen": 4096, "maxNumSeqs": 8, "maxNumBatchedTokens": 1024}


def of_type(name, *, image="peer:1", mode="colocated", **spec):
    """A fleet whose pods run the engine `name`, also in the mode that the API refuses for others
    until the gateway leads their handover."""
    asked = {"type": name, "image": image, **SIZES}
    one = fleet(**{"mode": "colocated", "engine": asked, **spec})
    return one.model_copy(update={"spec": one.spec.model_copy(update={"mode": mode})})


class PlainServer:
    """A server of the OpenAI API on one port, with other paths and no handover of KV caches."""

    command = ("openai-server",)
    ports: Mapping[str, int] = MappingProxyType({"http": 9000})
    ready = HttpEndpoint(9000, "/v1/models")
    live = HttpEndpoint(9000, "/ping")
    metrics = HttpEndpoint(9000, "/stats/prometheus")
    series: Mapping[str, str] = MappingProxyType({})
    own_flags = frozenset({"--model-dir", "--alias"})
    keyed = False
    env: Mapping[str, str] = MappingProxyType({})
    handover_ports: Mapping[str, int] = MappingProxyType({})

    def args(self, pod: EnginePod) -> list[str]:
        return ["--model-dir", pod.weights, "--alias", pod.fleet.name]

    def kv_args(self, _: EnginePod) -> list[str]:
        return []


PLAIN: EngineKind = PlainServer()
KINDS = {"argosy": ARGOSY, "plain": PLAIN}
OTHERS = {"vllm": VLLM, "sglang": SGLANG}


def rendered(one, kind):
    """The Deployments of all roles of the fleet."""
    return [
        workload.deployment(EnginePod.of(one, role, "0123abcd", IMAGES), 1, kind=kind)
        for role, _ in one.spec.active_roles()
    ]


def container(deployment):
    return deployment["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("one", FLEETS.values(), ids=FLEETS)
def test_pods_of_every_kind_are_valid_and_restricted(one, kind):
    for deployment in rendered(one, kind):
        kubernetes_validate.validate(deployment, "1.36", strict=True)
        assert offences(deployment["spec"]["template"]["spec"]) == []


def test_another_kind_brings_its_command_ports_probes_and_metrics():
    deployment = rendered(FLEETS["colocated"], PLAIN)[0]
    made = container(deployment)
    assert made["command"] == ["openai-server"]
    assert made["args"] == [
        *("--model-dir", "/models/some/model", "--alias", "chat"),
        "--seed=1",
    ]
    assert made["ports"] == [{"name": "http", "containerPort": 9000}]
    probes = {name: made[name]["httpGet"] for name in made if name.endswith("Probe")}
    assert probes == {
        "startupProbe": {"path": "/v1/models", "port": 9000},
        "readinessProbe": {"path": "/v1/models", "port": 9000},
        "livenessProbe": {"path": "/ping", "port": 9000},
    }
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == "9000"
    assert annotations["prometheus.io/path"] == "/stats/prometheus"


def test_what_is_not_the_kinds_is_the_same_for_every_kind():
    def without_container(deployment):
        spec = deployment["spec"]["template"]["spec"]
        meta = deployment["spec"]["template"]["metadata"]
        same = ("image", "env", "resources", "securityContext", "volumeMounts")
        kept = {name: container(deployment)[name] for name in same}
        return [deployment["metadata"], meta["labels"], kept, {**spec, "containers": None}]

    ours, plain = (rendered(FLEETS["disaggregated"], kind) for kind in KINDS.values())
    assert [without_container(d) for d in ours] == [without_container(d) for d in plain]


def test_the_plan_runs_a_fleet_of_another_kind():
    model = Model(model_fleet(mode="disaggregated"))
    snapshot = model.snapshot()
    engines = {
        role: workload.deployment(
            EnginePod.of(model.fleet, role, snapshot.revision, IMAGES), kind=PLAIN
        )
        for role in snapshot.engines
    }
    created = [
        container(action.obj)["command"]
        for action in plan(replace(snapshot, engines=engines)).actions
        if isinstance(action, Create) and "engine" in str(action.obj["spec"].get("template"))
    ]
    assert created == [["openai-server"]] * 2


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("one", FLEETS.values(), ids=FLEETS)
def test_users_may_not_set_a_flag_that_the_kind_renders(one, kind):
    """A second one in engine.args would win, or clash, without a word."""
    for role, _ in one.spec.active_roles():
        pod = EnginePod.of(one, role, "0123abcd", IMAGES)
        arguments = [*kind.args(pod), *kind.kv_args(pod)]
        assert {arg for arg in arguments if arg.startswith("--")} <= kind.own_flags


def test_the_type_of_the_spec_chooses_the_kind():
    assert dict(OF_TYPE) == {"argosy": ARGOSY, **OTHERS}
    for name, kind in OF_TYPE.items():
        one = EnginePod.of(of_type(name), "colocated", "0123abcd", IMAGES)
        assert container(workload.deployment(one))["command"] == list(kind.command)
        assert kind.own_flags == frozenset(OWN_FLAGS[name])


def test_the_arguments_of_vllm():
    one = of_type("vllm", drain={"timeout": "90s"})
    made = container(rendered(one, VLLM)[0])
    assert made["command"] == ["vllm", "serve"]
    assert made["args"] == [
        "/models/some/model",
        *("--served-model-name", "chat"),
        *("--port", "8000", "--dtype", "auto"),
        *("--max-model-len", "4096", "--max-num-seqs", "8", "--max-num-batched-tokens", "1024"),
        *("--shutdown-timeout", "90", "--api-key", "$(POD_UID)"),
    ]


def test_the_arguments_of_sglang():
    made = container(rendered(of_type("sglang"), SGLANG)[0])
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
    deployment = rendered(of_type(name), OTHERS[name])[0]
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


def test_our_pods_have_no_note_of_their_type():
    for deployment in rendered(FLEETS["disaggregated"], None):
        notes = deployment["spec"]["template"]["metadata"]["annotations"]
        assert "serving.argosy.dev/engine" not in notes


HANDOVER = {
    "vllm": {
        role: ["--kv-transfer-config", f'{{"kv_connector": "NixlConnector", "kv_role": "{kv}"}}']
        for role, kv in (("prefill", "kv_producer"), ("decode", "kv_consumer"))
    },
    "sglang": {
        role: ["--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl"]
        for role in ("prefill", "decode")
    },
}
PORTS = {"vllm": ("nixl", 5600), "sglang": ("bootstrap", 8998)}


@pytest.mark.parametrize("name", OTHERS)
def test_disaggregated_pods_of_other_engines_get_their_handover_by_role(name):
    one = of_type(name, mode="disaggregated")
    for (role, _), deployment in zip(
        one.spec.active_roles(), rendered(one, OTHERS[name]), strict=True
    ):
        made = container(deployment)
        assert made["args"][-len(HANDOVER[name][role]) :] == HANDOVER[name][role]
        port, number = PORTS[name]
        assert {"name": port, "containerPort": number} in made["ports"]
        kubernetes_validate.validate(deployment, "1.36", strict=True)
        assert offences(deployment["spec"]["template"]["spec"]) == []
        flags = {arg for arg in made["args"] if arg.startswith("--")}
        assert flags <= OTHERS[name].own_flags


@pytest.mark.parametrize("name", OTHERS)
def test_colocated_pods_of_other_engines_hand_nothing_over(name):
    pod = EnginePod.of(of_type(name), "colocated", "0123abcd", IMAGES)
    assert OTHERS[name].kv_args(pod) == []


@pytest.mark.parametrize(
    ("name", "flag"), [("vllm", "--tensor-parallel-size"), ("sglang", "--tp-size")]
)
def test_several_gpus_share_a_model_of_other_engines(name, flag):
    one = of_type(name, roles={"colocated": {"parallelism": {"tensor": 4}}})
    args = container(rendered(one, OTHERS[name])[0])["args"]
    assert args[args.index(flag) + 1] == "4"
    alone = container(rendered(of_type(name), OTHERS[name])[0])["args"]
    assert flag not in alone


@pytest.mark.parametrize("verifies", [True, False])
def test_our_engines_read_the_file_of_peers_only_where_they_verify_them(verifies):
    one = fleet(mode="colocated", security={"verifyPeers": verifies})
    pod = EnginePod.of(one, "colocated", "0123abcd", IMAGES)
    args = ARGOSY.args(pod)
    assert args.count("--peers-file") == verifies
    if verifies:
        assert args[args.index("--peers-file") + 1] == peers.PATH


def test_the_users_values_of_a_variable_come_before_those_of_the_engine():
    asked = {"type": "vllm", "image": "peer:1", "env": [{"name": "HOME", "value": "/scratch"}]}
    env = container(rendered(fleet(mode="colocated", engine=asked), VLLM)[0])["env"]
    assert [one["value"] for one in env if one["name"] == "HOME"] == ["/scratch"]
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in env


@pytest.mark.parametrize("name", OF_TYPE)
def test_programs_of_any_engine_find_a_name_of_their_user_and_a_home_they_may_write(name):
    """No image has an entry for uid 65532 or for those of OpenShift, and getpwuid fails: torch and
    others ask for both at the start."""
    env = container(rendered(of_type(name), OF_TYPE[name])[0])["env"]
    asks = (
        "import getpass, pathlib, pwd; pwd.getpwuid = {}.__getitem__; "
        "print(getpass.getuser(), pathlib.Path.home())"
    )
    words = [sys.executable, "-I", "-c", asks]
    given = {one["name"]: one["value"] for one in env if "value" in one}
    done = subprocess.run(words, env=given, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("argosy /tmp\n", "")


@pytest.mark.parametrize("name", OF_TYPE)
def test_the_users_own_name_of_the_user_comes_first(name):
    asked = {"type": name, "image": "peer:1", "env": [{"name": "USER", "value": "mine"}]}
    items = [{"name": "engine", "env": [{"name": "USER", "value": "theirs"}]}]
    own = {"template": {"spec": {"containers": items}}}
    for spec in ({"engine": asked}, own, {"engine": asked, **own}):
        made = rendered(of_type(name, **spec), OF_TYPE[name])[0]
        values = [one["value"] for one in container(made)["env"] if one["name"] == "USER"]
        assert values == ["theirs" if "template" in spec else "mine"]


def test_the_api_refuses_exactly_our_kinds_own_flags_and_the_engine_knows_them(capsys):
    assert frozenset(RENDERED_FLAGS) == ARGOSY.own_flags
    with pytest.raises(SystemExit):
        parse(["--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert ARGOSY.own_flags - known == set()


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
