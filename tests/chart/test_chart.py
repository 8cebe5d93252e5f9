"""The chart, rendered by the real helm: valid, restricted, least rights, CRDs as generated."""

import copy
import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from argosy_operator.adapters.prometheus.allowlist import Allowlist
from argosy_operator.api.crd import definitions
from argosy_operator.api.model import PodTemplate
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.cli.kubectl.render import images_of
from argosy_operator.render import fetch, gateway, workload
from argosy_operator.render.engines import EnginePod
from local.cluster.config.images import read_registry
from tests.render.fleets import IMAGES, fleet
from tests.render.restricted import offences

pytestmark = pytest.mark.helm

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "argosy"
HELM = Path(sys.executable).parent / "helm"
VALUES = [None, *sorted(path.name for path in (CHART / "ci").glob("*.yaml"))]


def helm(*words):
    done = subprocess.run([HELM, *words], capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


@cache
def rendered(values=None, *settings, release="argosy"):
    """All objects of the chart with a file of ci/ and --set settings."""
    files = ["--values", str(CHART / "ci" / values)] if values else []
    words = [word for setting in settings for word in ("--set", setting)]
    code, text = helm("template", release, str(CHART), "-n", "argosy-system", *files, *words)
    assert code == 0, text
    return [document for document in yaml.safe_load_all(text) if document]


def one(objects, kind, ending=""):
    (found,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"].endswith(ending)]
    return found


def operator_args(objects):
    deployment = one(objects, "Deployment", "-operator")
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return dict(zip(args[2::2], args[3::2], strict=True))


def rules_of(objects, name="argosy-system-argosy"):
    (role,) = [o for o in objects if o["kind"] == "ClusterRole" and o["metadata"]["name"] == name]
    return role["rules"]


def granted(rules):
    """{(group, resource, verb)} of some RBAC rules."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_lint_passes():
    code, text = helm("lint", "--strict", str(CHART))
    assert code == 0, text


@pytest.mark.parametrize("values", VALUES)
def test_objects_are_valid_and_unique(values):
    objects = rendered(values)
    for item in objects:
        if item["kind"] != "CustomResourceDefinition":
            kubernetes_validate.validate(item, "1.36", strict=True)
    keys = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("values", VALUES)
def test_pods_pass_the_restricted_profile_and_have_all_probes(values):
    for item in rendered(values):
        if item["kind"] == "Deployment":
            pod = item["spec"]["template"]["spec"]
            assert offences(pod) == []
            for container in pod["containers"]:
                assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
            labels = item["spec"]["template"]["metadata"]["labels"]
            assert item["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_the_charts_crds_are_the_generated_ones():
    wanted = {document["metadata"]["name"]: document for document in definitions()}
    found = {
        item["metadata"]["name"]: item
        for item in rendered(None, "crds.keep=false")
        if item["kind"] == "CustomResourceDefinition"
    }
    assert found == wanted


def test_crds_are_kept_on_uninstall_by_default():
    kept = [o for o in rendered() if o["kind"] == "CustomResourceDefinition"]
    policies = [o["metadata"]["annotations"]["helm.sh/resource-policy"] for o in kept]
    assert policies == ["keep", "keep"]
    none = [o for o in rendered(None, "crds.enabled=false") if "Custom" in o["kind"]]
    assert none == []


def test_the_operator_reads_no_secrets_and_cannot_raise_its_rights():
    for _, resource, verb in granted(rules_of(rendered())):
        assert "*" not in (resource, verb)
        assert resource not in {"secrets", "nodes", "namespaces"}
        assert verb not in {"escalate", "bind", "impersonate", "deletecollection"}


def test_the_operator_cannot_list_configmaps_and_so_reads_only_those_that_it_can_name():
    rights = {v for _, r, v in granted(rules_of(rendered())) if r == "configmaps"}
    assert rights == {"get", "create", "patch"}


def test_the_operator_asks_for_tokens_of_its_own_account_only():
    objects = rendered()
    roles = [o for o in objects if o["kind"] in ("Role", "ClusterRole")]
    rules = [(o, rule) for o in roles for rule in o["rules"]]
    ((role, rule),) = [(o, r) for o, r in rules if "serviceaccounts/token" in r["resources"]]
    account = one(objects, "ServiceAccount", "argosy-operator")
    assert role["metadata"]["namespace"] == account["metadata"]["namespace"]
    assert (rule["resourceNames"], rule["verbs"]) == (["argosy-operator"], ["create"])


def test_the_operator_never_writes_a_users_fleet():
    verbs = {v for _, r, v in granted(rules_of(rendered())) if r == "servingdeployments"}
    assert verbs == {"get", "list", "watch"}


def test_the_operator_makes_events_of_the_new_kind_only_and_never_changes_one():
    rights = {(g, v) for g, r, v in granted(rules_of(rendered())) if r == "events"}
    assert rights == {("events.k8s.io", "create")}


def test_the_operator_holds_what_it_gives_to_gateways():
    """Kubernetes refuses a Role that grants more than its author has."""
    (role,) = [o for o in gateway.objects(fleet(), IMAGES) if o["kind"] == "Role"]
    assert granted(role["rules"]) <= granted(rules_of(rendered()))


def test_the_operator_may_write_every_kind_that_is_rendered():
    plurals = {
        "ServiceAccount": ("", "serviceaccounts"),
        "Service": ("", "services"),
        "Role": ("rbac.authorization.k8s.io", "roles"),
        "RoleBinding": ("rbac.authorization.k8s.io", "rolebindings"),
        "PodDisruptionBudget": ("policy", "poddisruptionbudgets"),
        "HorizontalPodAutoscaler": ("autoscaling", "horizontalpodautoscalers"),
        "Deployment": ("apps", "deployments"),
        "ConfigMap": ("", "configmaps"),
    }
    allowed = granted(rules_of(rendered()))
    for child in gateway.objects(fleet(routing={"autoscaling": {"max": 4}}), IMAGES):
        # The operator reads the one ConfigMap by its name, and may not see those of others.
        listed = () if child["kind"] == "ConfigMap" else ("list",)
        for verb in ("get", "create", "patch", *listed):
            assert (*plurals[child["kind"]], verb) in allowed


def test_the_operator_may_delete_only_what_it_deletes_itself():
    deletes = {resource for _, resource, verb in granted(rules_of(rendered())) if verb == "delete"}
    ours = {"servingroles", "deployments", "poddisruptionbudgets", "networkpolicies", "jobs"}
    assert deletes == ours | {"horizontalpodautoscalers", "controllerrevisions"}


def test_a_namespaced_release_has_nothing_of_the_clusters():
    objects = rendered("namespaced-values.yaml")
    assert [o["kind"] for o in objects if "namespace" not in o["metadata"]] == []
    assert operator_args(objects)["--namespace"] == "argosy-system"
    assert operator_args(rendered())["--namespace"] == "all"


def test_users_rights_follow_their_rights_in_the_namespace():
    view = rules_of(rendered(), "argosy-system-argosy-view")
    edit = rules_of(rendered(), "argosy-system-argosy-edit")
    assert {verb for _, _, verb in granted(view)} == {"get", "list", "watch"}
    assert ("serving.argosy.dev", "servingdeployments", "create") in granted(edit)
    assert not {r for _, r, _ in granted(edit)} & {"servingroles", "servingroles/status"}


def test_who_edits_fleets_may_undo_a_rollout_which_is_written_in_status():
    edit = granted(rules_of(rendered(), "argosy-system-argosy-edit"))
    assert {v for _, r, v in edit if r == "servingdeployments/status"} == {"patch"}


def test_an_embedded_prometheus_is_what_the_operator_asks():
    objects = rendered("embedded-values.yaml")
    service = one(objects, "Service", "argosy-prometheus")
    assert service["spec"]["ports"][0]["port"] == 9090
    url = operator_args(objects)["--prometheus-url"]
    assert url == "http://argosy-prometheus.argosy-system.svc:9090"


def test_what_one_pod_can_put_into_the_embedded_prometheus_is_bounded():
    config = one(rendered("embedded-values.yaml"), "ConfigMap")["data"]["prometheus.yml"]
    jobs = {job["job_name"]: job for job in yaml.safe_load(config)["scrape_configs"]}
    assert jobs.keys() == {"argosy-fleets", "argosy-operator"}
    for job in jobs.values():
        assert 0 < job["sample_limit"] <= 50_000
        assert 0 < job["target_limit"] <= 5_000
        assert 45 < job["label_limit"] <= 64  # one metric of vLLM 0.32 has 37, and the job's are 8
        assert job["body_size_limit"] == "8MB"
        assert 0 < job["label_name_length_limit"] <= 256
        assert 0 < job["label_value_length_limit"] <= 1024


WITH_API = ("--api-versions", "monitoring.coreos.com/v1", "--set", "crds.enabled=false")


def monitoring(*settings):
    """Exit status and objects of the chart, or its error, where the Prometheus Operator is."""
    words = [word for setting in settings for word in ("--set", setting)]
    code, text = helm("template", "argosy", str(CHART), "-n", "argosy-system", *WITH_API, *words)
    return code, text if code else [document for document in yaml.safe_load_all(text) if document]


def test_pod_monitors_scrape_what_the_embedded_prometheus_scrapes_and_label_it_alike():
    labels = "monitoring.podMonitor.labels.release=kube-prometheus-stack"
    code, objects = monitoring(
        "prometheus.embedded=true", "monitoring.podMonitor.enabled=true", labels
    )
    assert code == 0, objects
    text = one(objects, "ConfigMap", "-prometheus")["data"]["prometheus.yml"]
    jobs = {job["job_name"]: job for job in yaml.safe_load(text)["scrape_configs"]}
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    for part in ("fleets", "operator"):
        monitor, job = one(objects, "PodMonitor", f"-{part}"), jobs[f"argosy-{part}"]
        assert monitor["metadata"]["labels"]["release"] == "kube-prometheus-stack"
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        rules = [{names.get(k, k): v for k, v in r.items()} for r in endpoint["relabelings"]]
        assert rules == job["relabel_configs"]
        assert monitor["spec"]["sampleLimit"] == job["sample_limit"]
        assert endpoint["interval"] == endpoint["scrapeTimeout"] == "15s"
        # Engines of others have their metrics at another port than ours.
        assert "port" not in endpoint
    operator = one(objects, "Deployment", "-operator")["spec"]["template"]["metadata"]["labels"]
    selector = one(objects, "PodMonitor", "-operator")["spec"]["selector"]["matchLabels"]
    assert selector.items() <= operator.items()


@pytest.mark.parametrize(
    ("namespaced", "wanted"),
    [("false", {"any": True}), ("true", {"matchNames": ["argosy-system"]})],
)
def test_pods_of_fleets_are_scraped_in_the_namespaces_that_the_operator_watches(namespaced, wanted):
    code, objects = monitoring(
        "monitoring.podMonitor.enabled=true", f"rbac.namespaced={namespaced}"
    )
    assert code == 0, objects
    assert one(objects, "PodMonitor", "-fleets")["spec"]["namespaceSelector"] == wanted


def test_the_alerts_are_those_of_the_rules_file_with_links_to_the_docs_that_a_team_reads():
    rules = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    on = "monitoring.prometheusRule.enabled=true"
    code, objects = monitoring(on)
    assert code == 0, objects
    assert one(objects, "PrometheusRule")["spec"] == rules
    docs = "monitoring.prometheusRule.docsUrl=https://git.example/argosy/"
    code, objects = monitoring(on, docs)
    assert code == 0, objects
    links = [
        rule["annotations"]["runbook_url"]
        for group in one(objects, "PrometheusRule")["spec"]["groups"]
        for rule in group["rules"]
    ]
    assert {link.partition("#")[0] for link in links} == {
        "https://git.example/argosy/docs/how-to/alerts.md"
    }


def test_dashboards_are_configmaps_that_the_sidecar_of_grafana_finds():
    on = ("--set", "monitoring.dashboards.enabled=true")
    code, text = helm("template", "argosy", str(CHART), *on)
    assert code == 0, text
    found = [
        document
        for document in yaml.safe_load_all(text)
        if document and "grafana_dashboard" in document["metadata"].get("labels", {})
    ]
    files = {path.name: json.loads(path.read_text()) for path in CHART.glob("files/dashboards/*")}
    assert len(files) == 3
    assert {o["metadata"]["labels"]["grafana_dashboard"] for o in found} == {"1"}
    shown = {name: json.loads(text) for o in found for name, text in o["data"].items()}
    assert shown == {f"argosy-{name}": whole for name, whole in files.items()}
    for item in found:
        kubernetes_validate.validate(item, "1.36", strict=True)


def test_objects_for_the_prometheus_operator_are_off_by_default():
    code, objects = monitoring()
    assert code == 0
    assert [o["kind"] for o in objects if o["apiVersion"].startswith("monitoring")] == []


def test_where_the_api_is_missing_the_chart_says_so_unless_it_is_told_not_to_look():
    asked = ("--set", "monitoring.podMonitor.enabled=true")
    code, text = helm("template", "argosy", str(CHART), *asked)
    assert code != 0
    for needed in ("monitoring.podMonitor.enabled", "monitoring.coreos.com/v1", "--api-versions"):
        assert needed in text
    code, text = helm(
        "template", "argosy", str(CHART), *asked, "--set", "monitoring.checkAPI=false"
    )
    assert code == 0, text
    assert "kind: PodMonitor" in text


def test_a_prometheus_that_asks_for_a_token_gets_it_from_a_mounted_secret():
    setting = ("prometheus.url=https://p:9090", "prometheus.tokenSecret=prometheus-token")
    objects = rendered(None, *setting)
    path = operator_args(objects)["--prometheus-token-file"]
    pod = one(objects, "Deployment", "-operator")["spec"]["template"]["spec"]
    mounts = {m["mountPath"]: m for m in pod["containers"][0]["volumeMounts"]}
    folder, _, key = path.rpartition("/")
    assert mounts[folder]["readOnly"] is True
    (volume,) = [v for v in pod["volumes"] if v["name"] == mounts[folder]["name"]]
    assert volume["secret"]["secretName"] == "prometheus-token"
    assert [item["key"] for item in volume["secret"]["items"]] == [key] == ["token"]
    assert "--prometheus-token-file" not in operator_args(rendered())


def test_images_default_to_the_charts_version():
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert operator_args(rendered())["--engine-image"] == (f"{read_registry()}/engine:{version}")
    mirrored = rendered("mirrored-values.yaml")
    pod = one(mirrored, "Deployment")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"mirror.example/argosy/operator:{version}"
    assert pod["imagePullSecrets"] == [{"name": "mirror"}]


DIGEST = "sha256:" + "0f" * 32


@pytest.mark.parametrize(
    ("settings", "image"),
    [
        ([], f"{read_registry()}/engine:{version('argosy')}"),
        (["repository=engine-cpu"], f"{read_registry()}/engine-cpu:{version('argosy')}"),
        (["registry=mirror:5000/a", "tag=v2"], "mirror:5000/a/engine:v2"),
        ([f"digest={DIGEST}"], f"{read_registry()}/engine@{DIGEST}"),
        (["tag=v2", f"digest={DIGEST}"], f"{read_registry()}/engine:v2@{DIGEST}"),
    ],
)
def test_an_image_is_named_by_its_parts_and_render_names_it_alike(settings, image):
    found = rendered(None, *(f"images.engine.{part}" for part in settings))
    assert operator_args(found)["--engine-image"] == image
    values = {"images": {"engine": dict(part.split("=") for part in settings)}}
    assert images_of(values).engine == image


@pytest.mark.parametrize(
    "setting",
    ["digest=0f", "repository=", "repository=a:1", "registry=mirror/", "name=engine"],
)
def test_a_part_that_makes_no_image_is_refused(setting):
    code, text = helm("template", "x", str(CHART), "--set-string", f"images.fetch.{setting}")
    assert code != 0, text
    assert "images" in text


def test_the_charts_own_pods_are_pulled_as_the_policy_says():
    objects = rendered("embedded-values.yaml", "images.pullPolicy=Always")
    pulled = {
        name: pod["spec"]["containers"][0]["imagePullPolicy"]
        for name, pod in pods_of(objects).items()
    }
    assert pulled == {"operator": "Always", "prometheus": "Always"}


DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())


def paths(values, *above):
    """Every value by its path, those of whole sections, too."""
    for key, value in values.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths(value, *above, key)


def at(values, path):
    return at(values[path[0]], path[1:]) if path else values


@pytest.fixture(scope="module")
def chart_with_notes(tmp_path_factory):
    return with_notes(tmp_path_factory.mktemp("charts"))


@cache
def rendered_with(chart, values):
    (chart / "values.yaml").write_text(values)
    api = ("--api-versions", "monitoring.coreos.com/v1")
    return helm("template", "argosy", str(chart), "-n", "argosy-system", *api)


SWITCHES = [
    ("prometheus", "embedded"),
    ("networkPolicy", "enabled"),
    *(("monitoring", part, "enabled") for part in ("podMonitor", "prometheusRule", "dashboards")),
]


@pytest.mark.parametrize("path", [*paths(DEFAULTS)], ids=".".join)
def test_a_value_that_an_older_chart_did_not_have_has_its_default(path, chart_with_notes):
    """`helm upgrade --reuse-values` renders a chart with the values of the one before it."""
    now = copy.deepcopy(DEFAULTS)
    for *section, name in SWITCHES:
        at(now, section)[name] = not at(DEFAULTS, section)[name]
    at(now, path[:-1])[path[-1]] = copy.deepcopy(at(DEFAULTS, path))
    code, wanted = rendered_with(chart_with_notes, yaml.safe_dump(now))
    assert code == 0, wanted
    del at(now, path[:-1])[path[-1]]
    code, text = rendered_with(chart_with_notes, yaml.safe_dump(now))
    assert code == 0, text
    # Nobody can tell a limit that was taken away from one that is newer.
    assert "resources" in path or text == wanted


def test_a_chart_without_any_value_has_all_defaults(chart_with_notes):
    code, wanted = rendered_with(chart_with_notes, yaml.safe_dump(DEFAULTS))
    assert code == 0, wanted
    assert rendered_with(chart_with_notes, "{}") == (0, wanted)


@pytest.mark.parametrize(("enabled", "renders"), [("true", True), ("false", False)])
def test_a_parent_chart_turns_it_on_and_off_and_shares_globals(enabled, renders, tmp_path):
    (tmp_path / "charts").mkdir()
    shutil.copytree(CHART, tmp_path / "charts" / "argosy")
    needed = {"name": "argosy", "version": "*", "condition": "argosy.enabled"}
    parent = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [needed]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(parent))
    (tmp_path / "values.yaml").write_text("argosy: {operator: {replicas: 3}}")
    settings = ("--set", f"argosy.enabled={enabled}", "--set", "global.registry=mirror.example")
    code, text = helm("template", "platform", str(tmp_path), *settings)
    assert code == 0, text
    replicas = [
        document["spec"]["replicas"]
        for document in yaml.safe_load_all(text)
        if document and document["kind"] == "Deployment"
    ]
    assert replicas == ([3] if renders else [])


@pytest.mark.parametrize(
    "setting",
    ["image.operator=x", "prometheus.embeded=true", "operator.replicas=0", "crds.keep=maybe"],
)
def test_a_typo_in_values_is_refused(setting):
    code, text = helm("template", "argosy", str(CHART), "--set", setting)
    assert code != 0
    assert "values don't meet the specifications of the schema" in text


def test_values_and_their_schema_name_the_same_keys():
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def known(node):
        return schema["definitions"][node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node

    def compare(node, values, where):
        if "properties" in (node := known(node)):
            assert set(node["properties"]) == set(values), where
            for name, part in values.items():
                compare(node["properties"][name], part, f"{where}.{name}")
        else:
            assert not isinstance(values, dict) or not values or "additionalProperties" in node

    for reserved in ("global", "enabled"):
        del schema["properties"][reserved]
    compare(schema, values, "values")


def with_notes(folder):
    """A copy of the chart that shows its notes: `helm template` leaves them out, and `helm install`
    wants a cluster."""
    chart = shutil.copytree(CHART, folder / "argosy")
    text = (chart / "templates" / "NOTES.txt").read_text()
    (chart / "templates" / "_notes.tpl").write_text('{{- define "notes" -}}' + text + "{{ end }}")
    (chart / "templates" / "notes.yaml").write_text('notes: {{ include "notes" . | quote }}')
    return chart


@pytest.mark.parametrize(("embedded", "count"), [("false", 4), ("true", 5)])
def test_notes_name_the_next_command_and_all_images(embedded, count, chart_with_notes):
    (chart_with_notes / "values.yaml").write_text((CHART / "values.yaml").read_text())
    more = ("--set", f"prometheus.embedded={embedded}")
    code, text = helm("template", "argosy", str(chart_with_notes), *more)
    assert code == 0, text
    (notes,) = [o["notes"] for o in yaml.safe_load_all(text) if o and "notes" in o]
    assert "kubectl apply" in notes
    image = re.compile(rf"(?:{re.escape(read_registry())}|docker\.io/prom)/[\w-]+:[\w.-]+")
    installed = set(image.findall(yaml.safe_dump(rendered(None, more[1]))))
    assert len(installed) == count
    assert set(image.findall(notes)) == installed
    assert ("WARNING: no Prometheus is set" in notes) == (embedded == "false")
    fleet_of_notes = notes.split("<<'YAML'\n")[1].split("  YAML")[0]
    ServingDeployment.model_validate(yaml.safe_load(textwrap.dedent(fleet_of_notes)))


def test_fleets_share_a_gpu_budget_only_if_one_is_set():
    assert "--gpu-budget" not in operator_args(rendered())
    assert operator_args(rendered(None, "operator.gpuBudget=64"))["--gpu-budget"] == "64"
    assert "--namespace-gpu-budget" not in operator_args(rendered())
    args = operator_args(rendered(None, "operator.namespaceGpuBudgets.team-a=16"))
    assert args["--namespace-gpu-budget"] == "team-a=16"


def test_the_readmes_install_line_renders_with_every_image_of_the_registry():
    readme = (CHART.parents[1] / "README.md").read_text()
    (line,) = re.findall(r"^helm install argosy oci://.*?[^\\]$", readme, re.DOTALL | re.MULTILINE)
    words = shlex.split(line.replace("\\\n", " "))
    assert words[3] == f"oci://{read_registry()}/argosy"
    assert words[words.index("--version") + 1] == version("argosy")
    own = ("--set", "images.registry=registry.example.com/argosy")
    code, text = helm("template", "argosy", str(CHART), *words[4:], *own)
    assert code == 0, text
    for image in ("operator", "gateway", "engine", "fetch"):
        assert f"registry.example.com/argosy/{image}:{version('argosy')}" in text
    assert read_registry() not in text


def test_addresses_that_fleets_may_name_reach_the_operator():
    objects = rendered(None, "prometheus.allowed={prometheus.a:9090,10.0.0.0/8:9090}")
    deployment = one(objects, "Deployment", "-operator")
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    given = [args[i + 1] for i, word in enumerate(args) if word == "--prometheus-allow"]
    assert Allowlist.of(given) == Allowlist.of(["prometheus.a:9090", "10.0.0.0/8:9090"])
    code, text = helm("template", "x", str(CHART), "--set", "prometheus.allowed={prometheus.a}")
    assert code != 0
    assert "allowed" in text


def test_the_template_of_all_pods_reaches_the_operator():
    nothing = {"metadata": {}, "spec": {}}
    assert json.loads(operator_args(rendered())["--pod-template"]) == nothing
    setting = "podTemplate.spec.imagePullSecrets[0].name=registry"
    text = operator_args(rendered(None, setting))["--pod-template"]
    assert json.loads(text)["spec"] == {"imagePullSecrets": [{"name": "registry"}]}
    code, text = helm("template", "argosy", str(CHART), "--set", "podTemplate.hostNetwork=true")
    assert code != 0
    assert "hostNetwork" in text


USERS = ("runAsUser", "runAsGroup", "fsGroup")


def pods_of(objects):
    """The pod templates of all Deployments, by the end of the Deployment's name."""
    return {
        o["metadata"]["name"].rpartition("-")[2]: o["spec"]["template"]
        for o in objects
        if o["kind"] == "Deployment"
    }


def test_no_pod_names_a_user_where_the_platform_assigns_them():
    """restricted-v2 of OpenShift refuses pods with a user outside of the namespace's range."""
    objects = rendered("openshift-values.yaml", "crds.enabled=false")
    assert pods_of(objects).keys() == {"operator", "prometheus"}
    assert [name for name in USERS if name in json.dumps(objects)] == []
    template = PodTemplate.model_validate_json(operator_args(objects)["--pod-template"])
    images = replace(IMAGES, template=template)
    of_hub = fleet(model={"uri": "hf://a/b", "fetch": {"size": "1Gi"}})
    fleets = [
        *gateway.objects(fleet(), images),
        workload.deployment(EnginePod.of(fleet(), "decode", "0" * 8, images)),
        fetch.job(of_hub, images),
    ]
    assert [name for name in USERS if name in json.dumps(fleets)] == []


PLACED = {
    "nodeSelector": {"pool": "general"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "priorityClassName": "important",
}


@pytest.mark.parametrize(
    ("component", "placed"),
    [("operator", {"operator"}), ("prometheus", {"prometheus"})],
)
def test_the_charts_own_pods_are_placed_by_the_values_of_their_component(component, placed):
    settings = [f"{component}.{name}={json.dumps(value)}" for name, value in PLACED.items()]
    settings.append(f'{component}.podAnnotations={{"team":"llm"}}')
    words = [word for setting in settings for word in ("--set-json", setting)]
    words += ["--set", "prometheus.embedded=true,crds.enabled=false"]
    code, text = helm("template", "argosy", str(CHART), *words)
    assert code == 0, text
    objects = list(yaml.safe_load_all(text))
    for item in objects:
        kubernetes_validate.validate(item, "1.36", strict=True)
    pods = pods_of(objects)
    assert pods.keys() == {"operator", "prometheus"}
    for name, template in pods.items():
        found = {key: template["spec"][key] for key in PLACED if key in template["spec"]}
        assert found == (PLACED if name in placed else {})
        noted = (template["metadata"].get("annotations") or {}).get("team")
        assert noted == ("llm" if name in placed else None)


EVERYTHING = (
    *("prometheus.embedded=true", "networkPolicy.enabled=true", "monitoring.checkAPI=false"),
    *(f"monitoring.{part}.enabled=true" for part in ("podMonitor", "prometheusRule", "dashboards")),
)


def selectors(item):
    """All label selectors of an object, of any kind."""
    if isinstance(item, list):
        return [found for one in item for found in selectors(one)]
    if not isinstance(item, dict):
        return []
    named = [item[name] for name in ("selector", "podSelector", "labelSelector") if name in item]
    return named + [found for one in item.values() for found in selectors(one)]


def test_common_labels_are_on_all_objects_and_pods_and_in_no_selector():
    labelled = ("commonLabels.team=llm", "commonLabels.app\\.kubernetes\\.io/name=other")
    objects = rendered(None, *EVERYTHING, *labelled)
    assert {"CustomResourceDefinition", "PodMonitor", "NetworkPolicy"} <= {
        item["kind"] for item in objects
    }
    for item in [*objects, *pods_of(objects).values()]:
        labels = item["metadata"]["labels"]
        assert labels["team"] == "llm", item["metadata"]
        own = item.get("kind") != "CustomResourceDefinition"
        assert labels["app.kubernetes.io/name"] == ("argosy" if own else "other")
    plain = rendered(None, *EVERYTHING)
    crds = "CustomResourceDefinition"
    assert [selectors(o) for o in objects if o["kind"] != crds] == [
        selectors(o) for o in plain if o["kind"] != crds
    ]


def test_labels_of_one_object_come_before_the_common_ones():
    labels = ("commonLabels.release=mine", "monitoring.podMonitor.labels.release=prometheus")
    objects = rendered(None, *EVERYTHING, *labels)
    assert one(objects, "PodMonitor", "-fleets")["metadata"]["labels"]["release"] == "prometheus"
    assert one(objects, "PrometheusRule")["metadata"]["labels"]["release"] == "mine"


def with_json(*settings):
    words = [word for setting in settings for word in ("--set-json", setting)]
    code, text = helm(
        "template", "argosy", str(CHART), "-n", "sys", "--set", "crds.enabled=false", *words
    )
    assert code == 0, text
    return [document for document in yaml.safe_load_all(text) if document]


def test_objects_of_the_user_are_installed_with_their_templates_filled_in():
    written = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "{{ .Release.Name }}-extra"},
        "data": {"engine": '{{ include "argosy.image" (list . "engine") }}'},
    }
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Release.Namespace }}-text'}\n"
    objects = with_json(f"extraObjects={json.dumps([written, text])}")
    assert one(objects, "ConfigMap", "argosy-extra")["data"]["engine"].startswith(read_registry())
    assert one(objects, "ConfigMap", "sys-text")


def accounts(objects):
    """Names of the accounts that are made, that pods use, and that have rights."""
    made = {o["metadata"]["name"] for o in objects if o["kind"] == "ServiceAccount"}
    used = {pod["spec"]["serviceAccountName"] for pod in pods_of(objects).values()}
    bound = {s["name"] for o in objects for s in o.get("subjects", ())}
    tokens = {
        name
        for o in objects
        for rule in o.get("rules", ())
        if "serviceaccounts/token" in rule["resources"]
        for name in rule["resourceNames"]
    }
    return made, used, bound, tokens


def test_the_operators_account_may_be_one_that_is_there_or_have_a_name_and_annotations():
    default, own = {"argosy-operator"}, {"cloud"}
    assert accounts(rendered()) == (default, default, default, default)
    named = rendered(None, "serviceAccount.name=cloud", "serviceAccount.annotations.role=arn")
    assert accounts(named) == (own, own, own, own)
    assert one(named, "ServiceAccount")["metadata"]["annotations"] == {"role": "arn"}
    there = rendered(None, "serviceAccount.name=cloud", "serviceAccount.create=false")
    assert accounts(there) == (set(), own, own, own)


def test_an_account_that_is_there_must_be_named():
    code, text = helm("template", "x", str(CHART), "--set", "serviceAccount.create=false")
    assert code != 0
    assert "serviceAccount.name" in text


def test_operators_spread_over_nodes_or_as_the_user_says():
    def spread(objects):
        return pods_of(objects)["operator"]["spec"].get("topologySpreadConstraints")

    zones = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
    }
    own = {"labelSelector": {"matchLabels": {"mine": "yes"}}}
    asked = f"operator.topologySpreadConstraints={json.dumps([zones, zones | own])}"
    objects = with_json(asked)
    selector = one(objects, "Deployment")["spec"]["selector"]
    assert spread(objects) == [zones | {"labelSelector": selector}, zones | own]
    (default,) = spread(rendered())
    assert (default["topologyKey"], default["labelSelector"]) == (
        "kubernetes.io/hostname",
        selector,
    )
    assert spread(with_json("operator.topologySpreadConstraints=[]")) is None


def test_the_operator_logs_json_at_the_level_that_is_asked_for():
    args = operator_args(rendered())
    assert (args["--log-level"], args["--log-format"]) == ("info", "json")
    args = operator_args(rendered(None, "operator.logLevel=debug", "operator.logFormat=text"))
    assert (args["--log-level"], args["--log-format"]) == ("debug", "text")


def test_policies_let_in_what_the_charts_pods_are_asked_and_are_off_by_default():
    assert [o for o in rendered() if o["kind"] == "NetworkPolicy"] == []
    objects = rendered(None, "prometheus.embedded=true", "networkPolicy.enabled=true")
    deployments = {o["metadata"]["name"]: o for o in objects if o["kind"] == "Deployment"}
    policies = {o["metadata"]["name"]: o["spec"] for o in objects if o["kind"] == "NetworkPolicy"}
    assert policies.keys() == deployments.keys()
    operators = deployments["argosy-operator"]["spec"]["selector"]
    for name, policy in policies.items():
        deployment = deployments[name]["spec"]
        assert policy["podSelector"] == deployment["selector"]
        assert policy["policyTypes"] == ["Ingress"]
        (rule,) = policy["ingress"]
        (container,) = deployment["template"]["spec"]["containers"]
        listened = {port["containerPort"] for port in container["ports"]}
        assert {port["port"] for port in rule["ports"]} == listened
        sources = [{"podSelector": operators}] if name == "argosy-prometheus" else None
        assert rule.get("from") == sources


def test_artifact_hub_is_told_the_crds_and_an_example_that_is_valid():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    told = chart["annotations"]
    crds = {item["name"]: item for item in yaml.safe_load(told["artifacthub.io/crds"])}
    assert {(name, crd["kind"], crd["version"]) for name, crd in crds.items()} == {
        (crd["metadata"]["name"], crd["spec"]["names"]["kind"], crd["spec"]["versions"][0]["name"])
        for crd in definitions()
    }
    for example in yaml.safe_load(told["artifacthub.io/crdsExamples"]):
        ServingDeployment.model_validate(example)


def test_the_icon_is_a_file_of_the_repository_that_the_chart_names_as_its_home():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    assert chart["home"] == root
    raw = root.replace("github.com", "raw.githubusercontent.com") + "/main/"
    assert chart["icon"].startswith(raw)
    assert "<svg" in (ROOT / chart["icon"].removeprefix(raw)).read_text()
