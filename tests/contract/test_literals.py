"""Labels, annotations, headers, ports and options are literal on each side, and the same."""

import re
from pathlib import Path
from typing import get_args

import pytest

from argosy_engine import cli as engine_cli
from argosy_engine.config import MOST_AUTO_TOKENS, STEP_TOKENS
from argosy_engine.core.limits import Limits
from argosy_engine.core.step_time import Terms, prompt_tokens
from argosy_gateway import cli as gateway_cli
from argosy_gateway.pods import endpoints
from argosy_gateway.routing import dispatch
from argosy_gateway.routing.strategies import STRATEGIES
from argosy_law.estimate import capacity
from argosy_operator.api.v1alpha1.routing import Routing
from argosy_operator.core.snapshot import names
from argosy_operator.core.steps import goals as spec
from tests.support.model import Model, fleet

ROOT = Path(__file__).parents[2]
SEAMS = (ROOT / "designs/0001-seams.md").read_text()


def source(package: str) -> str:
    folder = next(ROOT / side / package for side in ("operator", "engine")
                   if (ROOT / side / package).is_dir())  # fmt: skip
    return "\n".join(path.read_text() for path in sorted(folder.rglob("*.py")))


def test_labels_and_annotations_are_equal_in_operator_and_gateway():
    assert names.FLEET == endpoints.FLEET_LABEL
    assert names.ROLE == endpoints.ROLE_LABEL
    assert names.REVISION == endpoints.REVISION_LABEL
    assert names.DRAIN == endpoints.DRAIN_ANNOTATION
    ours = (names.DELETION_COST, names.ACCOUNT)
    for name in (names.FLEET, names.ROLE, names.REVISION, names.DRAIN, *ours):
        assert f"`{name}`" in SEAMS


def test_ports_are_equal_in_all_three_programs():
    engine = engine_cli.parse(["--model", "sim:x", "--served-name", "m"])
    gateway = gateway_cli.parse(["run", "--fleet", "f", "--namespace", "n", "--served-name", "m"])
    assert (engine.port, engine.admin_port, engine.kv_port) == (8000, 8001, 8002)
    assert (names.API_PORT, names.ADMIN_PORT, names.KV_PORT) == (8000, 8001, 8002)
    assert (endpoints.API_PORT, endpoints.KV_PORT) == (names.API_PORT, names.KV_PORT)
    assert (gateway.port, gateway.admin_port) == (names.GATEWAY_PORT, names.GATEWAY_ADMIN_PORT)


def test_the_api_offers_exactly_the_gateways_strategies():
    field = Routing.model_fields["strategy"]
    assert set(get_args(field.annotation)) == STRATEGIES.keys()
    gateway = gateway_cli.parse(["run", "--fleet", "f", "--namespace", "n", "--served-name", "m"])
    assert gateway.strategy == field.default


def test_the_law_sizes_the_steps_of_an_engine_as_the_engine_does():
    for base_s, token_s in ((0.01, 0.001), (0.02, 0.0001), (0.0, 0.001), (0.05, 0.0002)):
        terms = Terms(base_s, token_s, 0.0)
        engine = prompt_tokens(terms, decodes=3, limit_s=0, least=32, most=MOST_AUTO_TOKENS)
        assert capacity.auto_step_tokens(base_s, token_s, None) == engine
    assert spec.STEP_TOKENS == dispatch.STEP_TOKENS == STEP_TOKENS == MOST_AUTO_TOKENS


def test_a_gateway_waits_longer_for_a_streams_next_token_than_a_hand_over_may_hang():
    engine = engine_cli.parse(["--model", "sim:x", "--served-name", "m"])
    gateway = gateway_cli.parse(["run", "--fleet", "f", "--namespace", "n", "--served-name", "m"])
    stop_s = Limits(max_num_seqs=1, max_num_batched_tokens=1, max_queue=1).cancel_timeout_s
    prompt_s = 30  # to compute it again
    assert gateway.limits.engine_silence_s > engine.kv_timeout_s + stop_s + prompt_s


def test_no_program_uses_a_header_that_the_seams_do_not_name():
    for package in ("argosy_gateway", "argosy_engine", "argosy_operator"):
        for header in set(re.findall(r'"(x-argosy-[a-z-]+)"', source(package))):
            assert f"`{header}" in SEAMS, f"{package}: {header}"


@pytest.mark.parametrize("program", ["engine", "gateway"])
def test_the_options_of_the_seams_are_those_of_the_program(program, capsys):
    line = SEAMS.partition(f"\nargosy {program} ")[2].partition("\nargosy ")[0].partition("```")[0]
    options = set(re.findall(r"--[a-z-]+", line)) | {"--help"}
    assert len(options) > 8
    parser = {"engine": engine_cli._parser, "gateway": gateway_cli._parser}[program]()
    with pytest.raises(SystemExit):
        parser.parse_args((["run"] if program == "gateway" else []) + ["--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert options == known


def test_a_gateway_knows_the_pods_of_the_deployments_that_are_rendered():
    """By the name of their ReplicaSet, which Kubernetes makes of the Deployment's name."""
    for deployment in Model(fleet(mode="disaggregated")).snapshot().engines.values():
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        name = f"{deployment['metadata']['name']}-7c9"
        meta = {
            "name": f"{name}-x",
            "labels": {**labels, "pod-template-hash": "7c9"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": name, "controller": True}],
        }
        endpoint = endpoints.endpoint_of_pod({"metadata": meta})
        assert endpoint is not None
        assert endpoint.role == labels[names.ROLE]
