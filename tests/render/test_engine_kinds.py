"""An engine kind decides how the container starts and where it answers, and nothing else."""

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import kubernetes_validate
import pytest

from argosy_engine.cli import parse
from argosy_operator.api.v1alpha1.engine import RENDERED_FLAGS
from argosy_operator.api.v1alpha1.pods.env import RENDERED_ENV
from argosy_operator.core.fleet.actions import Create
from argosy_operator.core.plan import plan
from argosy_operator.render import workload
from argosy_operator.render.common import identity_env
from argosy_operator.render.engines.argosy import ARGOSY
from argosy_operator.render.engines.kind import EngineKind, EnginePod, HttpEndpoint
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


class PlainServer:
    """A server of the OpenAI API on one port, with other paths and no handover of KV caches."""

    command = ("openai-server",)
    ports: Mapping[str, int] = MappingProxyType({"http": 9000})
    ready = HttpEndpoint(9000, "/v1/models")
    live = HttpEndpoint(9000, "/ping")
    metrics = HttpEndpoint(9000, "/stats/prometheus")
    series: Mapping[str, str] = MappingProxyType({})
    own_flags = frozenset({"--model-dir", "--alias"})

    def args(self, pod: EnginePod) -> list[str]:
        return ["--model-dir", pod.weights, "--alias", pod.fleet.engine_names[0]]

    def kv_args(self, _: EnginePod) -> list[str]:
        return []


PLAIN: EngineKind = PlainServer()
KINDS = {"argosy": ARGOSY, "plain": PLAIN}


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
