"""The one-machine cluster behaves as a Kubernetes cluster does, also when its parts die."""

import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import pytest

from local.cluster.cluster import Cluster, processes_in
from local.cluster.errors import ApiError
from tests.local import ordinary

pytestmark = pytest.mark.cluster
KUBECTL = Path(sys.prefix) / "bin" / "kubectl"


def pod(name: str, *command: str, gpus: int = 0, **spec) -> dict:
    """A pod that `restricted` Pod Security admits; `spec` and `container` fields may be added."""
    container = {
        "name": "main",
        "image": "local/shell:1",
        "command": list(command),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        **spec.pop("container", {}),
    }
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    security = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"securityContext": security, "containers": [container], **spec},
    }


def web(name: str, **spec) -> dict:
    """A pod with an HTTP server on port 8000 and a readiness probe."""
    probe = {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1}
    command = ["python3", "-u", "-m", "http.server", "8000"]
    return pod(name, *command, container={"readinessProbe": probe}, **spec)


def pods_of(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def condition(found: dict, kind: str) -> dict:
    return next((c for c in found["status"].get("conditions", []) if c["type"] == kind), {})


def create_ready(cluster: Cluster, namespace: str, body: dict) -> dict:
    cluster.api.post(pods_of(namespace), body)
    return until_ready(cluster, namespace, body["metadata"]["name"])


def until_ready(cluster: Cluster, namespace: str, name: str) -> dict:
    """The pod, as soon as it is ready."""
    path = f"{pods_of(namespace)}/{name}"

    def ready() -> dict | None:
        found = cluster.api.get(path)
        return found if condition(found, "Ready").get("status") == "True" else None

    return cluster.until(ready, path)


def kubectl(cluster: Cluster, *words: str) -> str:
    command = [str(KUBECTL), f"--kubeconfig={cluster.kubeconfig}", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def serve(cluster: Cluster, namespace: str, name: str) -> None:
    body = {
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    cluster.api.post(f"/api/v1/namespaces/{namespace}/services", body)


def restarts(cluster: Cluster, namespace: str, name: str) -> int:
    statuses = cluster.api.get(f"{pods_of(namespace)}/{name}")["status"]["containerStatuses"]
    return statuses[0]["restartCount"]


def test_a_pod_with_probes_becomes_ready_and_its_log_is_readable(cluster, namespace):
    create_ready(cluster, namespace, web("hello"))
    words = ("logs", "-n", namespace, "hello")
    cluster.until(lambda: "GET / HTTP" in kubectl(cluster, *words), "the probe in the log")


def test_a_service_answers_on_loopback_and_by_name_in_a_pod(cluster, namespace):
    create_ready(cluster, namespace, web("hello"))
    serve(cluster, namespace, "hello")
    port = cluster.host_port("hello", 80, namespace)
    url = f"http://127.0.0.1:{port}/"
    assert cluster.until(lambda: urllib.request.urlopen(url, timeout=5).status == 200, url)
    script = (
        "import urllib.request as u; "
        f"print(u.urlopen('http://hello.{namespace}.svc.cluster.local/', timeout=5).status); "
        "print(u.urlopen('http://hello/', timeout=5).status)"
    )
    ask = pod("ask", "python3", "-c", script, restartPolicy="OnFailure")
    cluster.api.post(pods_of(namespace), ask)
    path = f"{pods_of(namespace)}/ask"
    cluster.until(lambda: cluster.api.get(path)["status"]["phase"] == "Succeeded", path)
    assert kubectl(cluster, "logs", "-n", namespace, "ask").split() == ["200", "200"]


@pytest.mark.long
def test_prestop_runs_before_sigterm_and_grace_ends_what_ignores_it(cluster, namespace):
    stubborn = pod(
        "stubborn",
        "sh",
        "-c",
        "trap '' TERM; while :; do sleep 0.2; done",
        terminationGracePeriodSeconds=3,
        container={"lifecycle": {"preStop": {"exec": {"command": ["sleep", "1"]}}}},
    )
    create_ready(cluster, namespace, stubborn)
    path = f"{pods_of(namespace)}/stubborn"
    cluster.api.delete(path)

    def gone() -> bool:
        try:
            cluster.api.get(path)
        except ApiError as error:
            return "404" in str(error)
        return False

    cluster.until(gone, "the pod is gone", timeout_s=8)


def test_a_crash_is_restarted_and_its_exit_code_reported(cluster, namespace):
    cluster.api.post(pods_of(namespace), pod("crash", "sh", "-c", "sleep 0.5; exit 7"))
    path = f"{pods_of(namespace)}/crash"

    def last_exit() -> int | None:
        status = cluster.api.get(path)["status"].get("containerStatuses", [{}])[0]
        ended = status.get("lastState", {}).get("terminated", {})
        return ended.get("exitCode") if status.get("restartCount") else None

    assert cluster.until(last_exit, "a restart") == 7


@pytest.mark.long
def test_restricted_pod_security_refuses_a_root_pod(cluster, namespace):
    body = {
        "metadata": {"name": "root"},
        "spec": {"containers": [{"name": "main", "image": "local/shell:1"}]},
    }
    with pytest.raises(ApiError, match="violates PodSecurity") as refused:
        cluster.api.post(pods_of(namespace), body)
    assert refused.value.status == 403


def test_gpus_are_scheduled_until_none_is_left(cluster, namespace):
    for number in range(3):
        create_ready(cluster, namespace, pod(f"full{number}", "sleep", "600", gpus=8))
    cluster.api.post(pods_of(namespace), pod("over", "sleep", "600", gpus=1))
    path = f"{pods_of(namespace)}/over"

    def unschedulable() -> dict | None:
        found = condition(cluster.api.get(path), "PodScheduled")
        return found if found.get("reason") == "Unschedulable" else None

    assert "Insufficient nvidia.com/gpu" in cluster.until(unschedulable, path)["message"]


@pytest.mark.long
@pytest.mark.parametrize("resource", ["persistentvolumeclaims", "pods"])
def test_a_kubelet_may_read_what_the_authorizer_has_not_seen_yet(cluster, resource):
    """One that was refused a claim tried its pod again after 13 s: `make demo` took longer by as
    much. One that was refused a pod wrote its status up to 10 s later, so that a test failed."""
    asked = {
        "user": "system:node:node1",
        "groups": ["system:nodes", "system:authenticated"],
        "resourceAttributes": {
            "namespace": "default",
            "verb": "get",
            "resource": resource,
            "name": "unseen",
        },
    }
    reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    answer = cluster.api.post(reviews, {"spec": asked})
    assert answer["status"]["allowed"], answer["status"]


@pytest.mark.long
def test_a_restart_of_a_kubelet_loses_no_pod_and_no_gpu(cluster, namespace):
    before = create_ready(cluster, namespace, web("stays"))
    node = before["spec"]["nodeName"]
    cluster.restart_kubelet(node)
    known = f"/api/v1/nodes/{node}/proxy/pods"
    cluster.until(lambda: '"name":"stays"' in cluster.api.text(known), "the new kubelet")
    # The new kubelet counts a pod that started a moment ago as not ready until it has probed it.
    after = until_ready(cluster, namespace, "stays")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert restarts(cluster, namespace, "stays") == 0
    cluster.until(
        lambda: (
            cluster.api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"]["nvidia.com/gpu"]
            == "8"
        ),
        "its GPUs",
    )


@pytest.mark.long
def test_processes_die_with_their_runtime_and_come_back(cluster, namespace):
    before = create_ready(cluster, namespace, web("back"))
    cluster.kill_runtime(before["spec"]["nodeName"])
    path = f"{pods_of(namespace)}/back"

    def is_back() -> bool:
        found = cluster.api.get(path)
        status = found["status"]["containerStatuses"][0]
        old = before["status"]["containerStatuses"][0]["containerID"]
        is_ready = condition(found, "Ready").get("status") == "True"
        return status["containerID"] != old and is_ready

    assert cluster.until(is_back, path, timeout_s=100)


@pytest.mark.long
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_nothing_is_left_behind_after(end):
    with tempfile.TemporaryDirectory(prefix="argosy-test-") as folder:
        second = Cluster("second", nodes=1, state_dir=Path(folder) / "c")
        started = second.start(tied=True)
        print(f"ready after {started.ready_s} s: {started.stages}")
        spaces = second.namespaces()
        assert processes_in(spaces)
        getattr(second, end)()
        assert processes_in(spaces) == []
        assert str(folder) not in Path("/proc/self/mounts").read_text()
        second.stop()  # also removes the files of a cluster that was killed
        assert not second.files.state.exists()


@pytest.mark.long
def test_a_tied_cluster_ends_soon_after_the_process_that_started_it():
    """Its supervisor watches the nodes in a thread, which waits for minutes."""
    with tempfile.TemporaryDirectory(prefix="argosy-test-") as folder:
        state = Path(folder) / "c"
        program = (
            "import pathlib, sys; from local.cluster.cluster import Cluster; "
            f"Cluster('tied', nodes=1, state_dir=pathlib.Path({str(state)!r})).start(tied=True); "
            "print('ready', flush=True); sys.stdin.read()"
        )
        words = [sys.executable, "-c", program]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as starter:
            assert starter.stdout is not None
            assert starter.stdout.readline() == "ready\n"
            tied = Cluster("tied", nodes=1, state_dir=state)
            spaces = tied.namespaces()
            assert processes_in(spaces)
            starter.kill()
        try:
            tied.until(lambda: not processes_in(spaces), "the end of all processes")
        finally:
            tied.stop()


@pytest.mark.long
def test_a_restricted_pod_becomes_ready_in_a_cluster_of_an_ordinary_user():
    if reason := ordinary.reason_not():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="argosy-test-") as folder:
        home = Path(folder)
        home.chmod(0o755)

        def run(*words: str) -> str:
            module = [sys.executable, "-m", "local.cluster", *words, "--state-dir", str(home / "c")]
            command = ordinary.command(home, module)
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            return done.stdout + done.stderr

        output = run("up", "--nodes", "1")
        assert "runAsUser, runAsGroup and fsGroup are not honoured" in output
        rootless = Cluster("ordinary", state_dir=home / "c")
        try:
            create_ready(rootless, "default", web("hello"))
        finally:
            run("down")
        assert not (home / "c").exists()
