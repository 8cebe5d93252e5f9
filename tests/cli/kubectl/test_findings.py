"""`kubectl argosy lint` says what the API server would refuse, with the line, without one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from argosy_operator.cli.kubectl.app import main
from argosy_operator.cli.kubectl.lint import documents, findings
from argosy_operator.cli.run import DEFAULT_FETCH, DEFAULT_GATEWAY

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
FLEET = """apiVersion: serving.argosy.dev/v1alpha1
kind: ServingDeployment
metadata: {name: chat}
spec:
  model:
    uri: sim://opt-13b-a100
  slo:
    ttft: {target: 200ms}
    tpot: {target: 50ms}
"""


def found(text: str) -> list[str]:
    return [one.text() for d in documents(text, "f.yaml") for one in findings(d)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_nothing_to_complain_about(path: Path) -> None:
    assert found(path.read_text()) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("uri: sim", "urii: sim", "f.yaml:6: error: ServingDeployment chat: spec.model.urii: there "
         "is no such field: did you mean uri?"),
        ("50ms", "5x", "f.yaml:9: error: ServingDeployment chat: spec.slo.tpot.target: an SLO"),
        ("v1alpha1", "v2", "f.yaml:1: error: ServingDeployment chat: apiVersion: is"),
        ("{name: chat}", "{}", "f.yaml:3: error: document 1: metadata: there is no metadata.name"),
        ("uri: sim://opt-13b-a100", "{}", "error: ServingDeployment chat: spec.model.uri: is req"),
        ("{target: 200ms}", "[200ms]", "f.yaml:8: error: ServingDeployment chat: spec.slo.ttft: "
         "must be of type object, not list"),
        ("200ms", "2ms", "f.yaml:8: warning: ServingDeployment chat: spec.slo.ttft.target: is "
         "below the engine's floor: a prefill step of an empty prompt takes 18.1 ms"),
        ("opt-13b-a100", "opt", "f.yaml:6: warning: ServingDeployment chat: spec.model.uri: there "
         "is no simulated engine of this name: use one of llama-70b"),
        ("  model:", "  model: 3\n  model:", "f.yaml:1: error: document 1: line 6: model is writt"),
        ("spec:", "spec: [", "f.yaml:6: error: document 1: this is no YAML: expected"),
        ("{name: chat}", "2026-13-01", "f.yaml:1: error: document 1: this is no YAML: month must"),
        ("{name: chat}", "[" * 5000, "f.yaml:1: error: document 1: it is nested too deeply to"),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_its_line_and_what_to_write(old: str, new: str, says: str) -> None:
    text = FLEET.replace(old, new, 1)
    assert text != FLEET
    assert any(line.startswith(says) or says in line for line in found(text)), found(text)


PODS = """  engine:
    env:
    - {name: A, value: x}
    - {name: B, value: x}
    - {name: A, value: y}
"""


def test_an_item_that_a_list_has_twice_is_refused_with_its_place() -> None:
    before = "ServingDeployment chat: spec."
    assert found(FLEET + PODS) == [
        f"f.yaml:14: error: {before}engine.env[2]: the list has an item with name A already: "
        "leave one out",
    ]


def test_a_field_of_argosys_in_a_template_is_an_error_though_the_api_server_takes_it() -> None:
    asked = """  template:
    spec:
      containers:
      - name: engine
        command: [sh]
"""
    (only,) = found(FLEET + asked)
    place = "spec.template.spec.containers[0].command"
    assert only.startswith(f"f.yaml:14: error: ServingDeployment chat: {place}: ")


def test_each_document_of_a_file_counts_and_other_kinds_are_left_alone() -> None:
    other = "kind: ConfigMap\nmetadata: {name: x}\ndata: {unknown: field}\n"
    text = "\n---\n".join((other, FLEET, FLEET.replace("chat", "blog").replace("50ms", "5")))
    (only,) = found(text)
    assert "f.yaml:25: error: ServingDeployment blog: spec.slo.tpot.target" in only


def listed(*texts: str, kind: str = "List") -> dict[str, Any]:
    """What `kubectl get -o yaml` prints of these objects: with what the API server adds."""
    items = [yaml.safe_load(text) for text in texts]
    for item in items:
        item["metadata"] |= {"uid": "1", "managedFields": [{"manager": "kubectl"}]}
        item["status"] = {"observedGeneration": 1, "of": {"another": "version"}}
    return {"apiVersion": "v1", "kind": kind, "items": items, "metadata": {"resourceVersion": ""}}


@pytest.mark.parametrize("kind", ["List", "ServingDeploymentList"])
@pytest.mark.parametrize("write", [yaml.safe_dump, lambda value: json.dumps(value, indent=4)])
def test_each_object_of_a_list_counts_with_its_own_line(
    kind: str, write: Callable[[Any], str]
) -> None:
    bad = FLEET.replace("chat", "blog").replace("50ms", "5x")
    pod = "kind: Pod\nmetadata: {name: x}\nspec: {unknown: field}\n"
    text = write(listed(FLEET, pod, bad, kind=kind))
    (only,) = found(text)
    (line,) = [n for n, one in enumerate(text.splitlines(), 1) if "5x" in one]
    assert f"f.yaml:{line}: error: ServingDeployment blog: spec.slo.tpot.target" in only


def test_aliases_that_multiply_are_refused_before_they_do() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 12)}]" for n in range(1, 10)]
    assert "values of it: write fewer" in found("\n".join(rows))[0]
    assert "an alias stands within what it names" in found("a: &a [*a]")[0]


ONE = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
WORDS = st.sampled_from(["name", "uri", "ttft", "decode", "replicas", "x", ""])
VALUES = ONE | st.lists(ONE, max_size=2) | st.dictionaries(WORDS, ONE, max_size=2)


@given(VALUES, st.sampled_from(["spec", "metadata", "apiVersion", "slo", "model", "roles"]))
def test_whatever_a_field_holds_is_a_finding_and_no_traceback(value: Any, field: str) -> None:
    whole = yaml.safe_load(FLEET)
    (whole["spec"] if field in ("slo", "model", "roles") else whole)[field] = value
    for document in documents(yaml.safe_dump(whole), "f.yaml"):
        for one in findings(document):
            assert one.line >= 1


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        status = main(list(words))
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def test_lint_exits_1_on_errors_and_with_strict_on_warnings(run: Run, tmp_path: Path) -> None:
    good, bad, meh = (tmp_path / name for name in ("good", "bad", "meh"))
    good.write_text(FLEET)
    bad.write_text(FLEET.replace("50ms", "0"))
    meh.write_text(FLEET.replace("200ms", "2ms"))
    assert run("lint", str(good))[:2] == (0, "1 fleets, 0 errors, 0 warnings\n")
    assert run("lint", str(good), str(bad))[0] == 1
    assert run("lint", str(meh))[0] == 0
    status, out, _ = run("lint", "--strict", "-o", "json", str(meh))
    assert status == 1
    assert json.loads(out)[0]["level"] == "warning"


def test_lint_takes_what_kubectl_get_prints(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "fleets").write_text(yaml.safe_dump(listed(FLEET, FLEET.replace("50ms", "0"))))
    with (tmp_path / "fleets").open() as fleets:
        monkeypatch.setattr("sys.stdin", fleets)
        status, out, _ = run("lint", "-")
    assert status == 1
    assert out.endswith("2 fleets, 1 errors, 0 warnings\n")


def test_the_manifests_of_a_folder_are_read_as_kubectl_reads_them(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "fleets"
    (folder / "below.yaml").mkdir(parents=True)
    (folder / "below.yaml" / "not-read.yaml").write_text("kind: [")
    (folder / "README.md").write_text("kind: [")
    (folder / "a.yaml").write_text(FLEET)
    (folder / "b.yml").write_text(f"{FLEET}---\n{FLEET.replace('50ms', '5x')}")
    (folder / "c.json").write_text(json.dumps(listed(FLEET, FLEET)))
    (tmp_path / "other").write_text(FLEET)
    status, out, _ = run("lint", str(folder), str(tmp_path / "other"))
    assert (status, out.splitlines()[-1]) == (1, "6 fleets, 1 errors, 0 warnings")
    assert out.startswith(f"{folder / 'b.yml'}:19: error: ServingDeployment chat: spec.slo.tpot")
    assert run("render", str(folder / "below.yaml"))[0] == 1
    (folder / "b.yml").unlink()
    assert run("render", str(folder))[0] == 0


@pytest.mark.parametrize("verb", ["lint", "render"])
def test_a_folder_without_manifests_is_named(verb: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(FLEET)
    status, _, said = run(verb, str(tmp_path))
    assert status == 1
    assert f"there is no .yaml, .yml, .json file in {tmp_path}" in said


@pytest.mark.parametrize("verb", ["lint", "render"])
def test_a_file_that_cannot_be_read_or_holds_no_fleet_is_named(
    verb: str, run: Run, tmp_path: Path
) -> None:
    status, _, said = run(verb, str(tmp_path / "none"))
    assert (status, said) == (
        1,
        f"kubectl argosy {verb}: cannot read {tmp_path / 'none'}: No such file or directory\n",
    )
    (tmp_path / "other").write_text("kind: Pod\n")
    status, _, said = run(verb, str(tmp_path / "other"))
    assert status == 1
    assert f"there is no ServingDeployment in {tmp_path / 'other'}" in said
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    assert "is no text in UTF-8" in run(verb, str(tmp_path / "bytes"))[2]


def test_render_prints_what_the_operator_makes_of_a_new_fleet(run: Run, tmp_path: Path) -> None:
    (tmp_path / "f").write_text(FLEET)
    status, out, _ = run("render", str(tmp_path / "f"), "-n", "chats", "--engine-image", "e:1")
    objects = list(yaml.safe_load_all(out))
    assert status == 0
    kinds = [obj["kind"] for obj in objects]
    assert kinds.count("Deployment") == 2 + ("Deployment" in kinds and _colocated(objects))
    assert {obj["metadata"]["namespace"] for obj in objects} == {"chats"}
    assert "e:1" in out
    assert "ownerReferences" not in out
    assert json.loads(run("render", str(tmp_path / "f"), "-o", "json")[1])["kind"] == "List"


def test_render_of_a_model_that_is_fetched_says_why_there_are_no_engines(
    run: Run, tmp_path: Path
) -> None:
    hub = str(ROOT / "examples" / "hub-model.yaml")
    status, out, said = run("render", hub)
    assert status == 0
    (job,) = (obj for obj in yaml.safe_load_all(out) if obj["kind"] == "Job")
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == DEFAULT_FETCH
    assert "its engine Deployments are not printed" in said
    assert "once the Job has fetched hf://" in said
    assert "mirror/fetch:2" in run("render", hub, "--fetch-image", "mirror/fetch:2")[1]
    (tmp_path / "f").write_text(FLEET)
    assert run("render", str(tmp_path / "f"))[2] == ""


VALUES = """images: {engine: {registry: mirror, tag: "2"}, gateway: {tag: ""}}
podTemplate:
  spec:
    priorityClassName: serving
    imagePullSecrets: [{name: registry}]
    containers: [{name: engine, resources: {requests: {cpu: 200m}}}]
operator: {replicas: 1}
"""


def containers(out: str, ending: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod whose Deployment's name ends so, and its container."""
    (pod,) = (
        obj["spec"]["template"]["spec"]
        for obj in yaml.safe_load_all(out)
        if obj["kind"] == "Deployment" and ending in obj["metadata"]["name"]
    )
    return pod, pod["containers"][0]


def test_render_takes_the_charts_values_for_images_and_pods(run: Run, tmp_path: Path) -> None:
    (tmp_path / "f").write_text(FLEET + "  mode: colocated\n")
    (tmp_path / "values").write_text(VALUES)
    (tmp_path / "more").write_text("podTemplate: {spec: {priorityClassName: batch}}\n")
    given = ("render", str(tmp_path / "f"), "--values", str(tmp_path / "values"))
    status, out, _ = run(*given)
    assert status == 0
    pod, engine = containers(out, "-colocated-")
    assert (engine["image"], pod["priorityClassName"]) == ("mirror/engine:2", "serving")
    assert engine["resources"]["requests"] == {"cpu": "200m", "memory": "256Mi"}
    pod, gateway = containers(out, "-gateway")
    assert gateway["image"] == DEFAULT_GATEWAY
    assert gateway["resources"]["requests"] == {"cpu": "100m", "memory": "128Mi"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    both = run(*given, "--values", str(tmp_path / "more"), "--engine-image", "mine:3")[1]
    pod, engine = containers(both, "-colocated-")
    assert (engine["image"], pod["priorityClassName"]) == ("mine:3", "batch")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ("images: {engin: x}", "the chart has no value images.engin: it has registry, engine"),
        ("images: {engine: mirror/engine:3}", "images.engine is no map of values"),
        ("images: {engine: {version: 3}}", "it has registry, repository, tag, digest"),
        ("images: {engine: {tag: 3}}", "images.engine.tag is no text: put it into quotes"),
        ("images: mine", "images is no map of values"),
        ("podTemplate: {pod: {}}", "the chart has no value podTemplate.pod: it has metadata, spec"),
        ("podTemplate: {spec: 7}", "podTemplate.spec: Input should be a valid dictionary"),
        ("podTemplate: {spec: {restartPolicy: Never}}", "podTemplate.spec.restartPolicy: Argosy's"),
        ("[a]", "holds no values: write them as the chart's values.yaml has them"),
        ("{", "is no YAML"),
    ],
)
def test_values_that_the_chart_does_not_have_are_named(
    values: str, says: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text(FLEET)
    (tmp_path / "values").write_text(values)
    status, out, said = run("render", str(tmp_path / "f"), "--values", str(tmp_path / "values"))
    assert (status, out) == (1, "")
    assert said.startswith(f"kubectl argosy render: {tmp_path / 'values'}")
    assert says in said


def _colocated(objects: list[dict[str, Any]]) -> int:
    """Deployments of engines less one: one in mode colocated, two in disaggregated."""
    names = [o["metadata"]["name"] for o in objects if o["kind"] == "Deployment"]
    return len([name for name in names if not name.endswith("-gateway")]) - 1


def test_render_of_a_manifest_with_an_error_prints_no_object(run: Run, tmp_path: Path) -> None:
    (tmp_path / "f").write_text(FLEET.replace("50ms", "0"))
    status, out, said = run("render", str(tmp_path / "f"))
    assert (status, out) == (1, "")
    assert "spec.slo.tpot.target" in said
