"""`argosy operator run` hands its flags on."""

import json
import re
from pathlib import Path

import pytest

from argosy_operator.adapters import cluster
from argosy_operator.cli import main
from argosy_operator.core.budgets import Budgets
from argosy_operator.shell import app


def test_flags_reach_the_operator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[app.Options] = []

    async def run(options: app.Options) -> int:
        given.append(options)
        return 0

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(app, "run", run)
    monkeypatch.setattr("os._exit", leave)
    token = tmp_path / "token"
    with pytest.raises(SystemExit):
        main(["run", "--prometheus-url", "https://p", "--prometheus-token-file", str(token)])
    assert given[0].prometheus_access.token_file == token
    assert (given[0].kube_api_qps, given[0].kube_api_burst) == (cluster.QPS, cluster.BURST)
    with pytest.raises(SystemExit):
        main(["run", "--kube-api-qps", "20", "--kube-api-burst", "30"])
    assert (given[1].kube_api_qps, given[1].kube_api_burst) == (20, 30)
    with pytest.raises(SystemExit):
        main(["run", "--prometheus-allow", "p.example:9090"])
    assert given[2].prometheus_allowed.permits("http://p.example:9090")
    with pytest.raises(SystemExit):
        main(["run", "--gpu-budget", "64"])
    assert [options.gpu_budgets.fleets for options in given] == [None, None, None, 64]
    with pytest.raises(SystemExit):
        main(["run", "--namespace-gpu-budget", "a=16", "--namespace-gpu-budget", "team-b=8"])
    assert given[4].gpu_budgets == Budgets(None, {"a": 16, "team-b": 8})
    asked = {"spec": {"imagePullSecrets": [{"name": "registry"}]}}
    with pytest.raises(SystemExit):
        main(["run", "--pod-template", json.dumps(asked)])
    assert given[5].images.template.spec == asked["spec"]
    with pytest.raises(SystemExit):
        main(["run", "--lease-namespace", "ns", "--lease-name", "mine"])
    assert (given[6].lease_namespace, given[6].lease_name) == ("ns", "mine")


@pytest.mark.parametrize(
    ("texts", "what"),
    [
        (["team-a"], "such as team-a=16"),
        (["team-a=0"], "a number from 1 to 100000"),
        (["team-a=100001"], "a number from 1 to 100000"),
        (["team-a=-4"], "such as team-a=16"),
        (["Team=4"], "such as team-a=16"),
        (["=4"], "such as team-a=16"),
        (["a=4", "b=4", "a=5"], "a is named twice"),
    ],
)
def test_a_wrong_budget_of_a_namespace_is_refused_with_what_to_write(
    texts: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *(f"--namespace-gpu-budget={text}" for text in texts)]) == 2
    said = " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().err).split())
    assert "--namespace-gpu-budget" in said
    assert what in said


def test_a_wrong_entry_of_the_allow_list_is_refused_with_what_to_write(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "--prometheus-allow", "p.example"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--prometheus-allow" in said
    assert "host:port" in said


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts:
- name: here
  context: {cluster: c, user: u%s}
clusters:
- name: c
  cluster: {server: "http://127.0.0.1:1"}
users:
- name: u
  user: {}
"""


@pytest.mark.parametrize(
    ("context", "flags", "namespace"),
    [
        (", namespace: chats", [], "chats"),
        ("", [], "default"),
        (", namespace: chats", ["-n", "other"], "other"),
    ],
)
def test_explain_looks_where_kubectl_would(
    context: str,
    flags: list[str],
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def nothing(*_: object) -> None:
        return None

    async def others(_self: object, _kind: str, where: str) -> list[object]:
        return [{"metadata": {"name": "blog", "namespace": where}}]

    monkeypatch.setattr("argosy_operator.adapters.cluster.ApiCluster.get", nothing)
    monkeypatch.setattr("argosy_operator.adapters.cluster.ApiCluster.list", others)
    config = tmp_path / "config"
    config.write_text(KUBECONFIG % context)
    monkeypatch.setenv("KUBECONFIG", str(config))
    assert main(["explain", "chat", *flags]) == 1
    text = f"there is no ServingDeployment chat in namespace {namespace}: it has blog\n"
    assert text in capsys.readouterr().err
