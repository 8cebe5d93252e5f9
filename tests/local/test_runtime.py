"""The runtime as the kubelet sees it: containers, logs, exec, stop, users, mounts, its death."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
import pytest

from local.cluster.cri import api_pb2
from tests.local.node import Node, alive

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes namespaces and mounts"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs `ip`: install iproute2"),
]

_PYTHON = os.path.realpath(sys.executable)
_USER = 65532


@pytest.fixture(scope="module")
def directory():
    path = Path(tempfile.mkdtemp(prefix="cri"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def node(directory):
    images = directory / "images.json"
    tools = {"user": _USER, "env": {"GREETING": "ahoy"}, "entrypoint": ["echo", "entry"]}
    python = {"paths": [sys.prefix, str(Path(_PYTHON).parents[1])], "user": _USER}
    unpacked = {"root": str(_root_with_a_shell(directory / "unpacked")), "user": _USER}
    entries = {"tools": tools, "root": {}, "python": python, "unpacked": unpacked}
    images.write_text(json.dumps(entries))
    running = Node(directory, images)
    yield running
    running.close()


def _root_with_a_shell(root: Path) -> Path:
    """A root filesystem with a shell, what it loads and a list of users; no other program."""
    for folder in ("usr/bin", "etc", "tmp"):
        (root / folder).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "etc" / "passwd").write_text(f"image:x:{_USER}:{_USER}::/:/bin/sh\n")
    (root / "tmp" / "of-the-image").touch()
    loaded = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    for file in ("/usr/bin/sh", *re.findall(r"(/\S+) \(0x", loaded)):
        (root / file[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, root / file[1:])
    return root


@pytest.fixture
def pod(node, request):
    name = re.sub("[^a-z]+", "-", request.node.name)[:40].strip("-")
    key = node.pod(name)
    yield key
    node.call("RemovePodSandbox", pod_sandbox_id=key)


def _failure(call, **fields) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call(**fields)
    return caught.value


def test_output_goes_to_the_log_in_the_cri_format_and_the_exit_code_is_kept(node, pod):
    container = node.run(pod, "sh", "-c", "echo out; echo err >&2; printf rest; exit 7")
    status = node.wait(container)
    assert (status.exit_code, status.reason) == (7, "Error")
    lines = Path(status.log_path).read_text().splitlines()
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z"
    assert all(re.fullmatch(stamp + r" (stdout|stderr) F .*", line) for line in lines)
    assert sorted(line.split(" ", 1)[1] for line in lines) == [
        "stderr F err",
        "stdout F out",
        "stdout F rest",
    ]


def test_the_program_is_pid_1_of_the_image_s_user_without_capabilities(node, pod):
    text = node.output(
        node.run(
            pod, "sh", "-c", "echo $$ $(id -u) $GREETING; grep CapEff /proc/self/status; id -un"
        )
    )
    assert text.splitlines()[0] == f"1 {_USER} ahoy"
    assert text.splitlines()[1].endswith("\t0000000000000000")
    assert text.splitlines()[2] == "app"


def test_the_host_s_homes_and_state_are_not_visible_and_image_paths_are_read_only(node, pod):
    script = f"ls -A /home /tmp; ls -A {node.directory}; touch {sys.prefix}/x; stat -c %a /root"
    lines = node.output(node.run(pod, "sh", "-c", script, image="python")).splitlines()
    assert any("Read-only file system" in line for line in lines)
    assert any("No such file or directory" in line for line in lines)
    assert "755" in lines
    assert "images.json" not in lines


def test_a_container_of_an_unpacked_image_sees_that_image_alone(node, pod):
    script = (
        "echo /*; echo /usr/bin/*; echo /etc/*; read user < /etc/passwd; echo $user; : > /usr/x"
    )
    container = node.run(pod, "sh", "-c", script, image="unpacked")
    top, programs, etc, user, *_ = node.output(container).splitlines()
    assert {"/bin", "/dev", "/proc", "/usr"} <= set(top.split())
    assert not {"/opt", "/sbin"} & set(top.split())
    assert programs == "/usr/bin/sh"
    made_for_the_pod = {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}
    assert set(etc.split()) == {"/etc/passwd"} | made_for_the_pod
    assert user.startswith(f"image:x:{_USER}:")
    assert not (node.directory / "unpacked" / "usr" / "x").exists()


def test_a_stop_runs_the_handler_and_returns_when_it_is_done(node, pod):
    script = "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    container = node.run(pod, "sh", "-c", script)
    _until(lambda: "ready" in Path(node.status(container).log_path).read_text())
    began = time.monotonic()
    node.call("StopContainer", container_id=container, timeout=10)
    assert time.monotonic() - began < 3
    assert node.status(container).exit_code == 3
    assert node.output(container) == "ready\nbye"


def test_an_ignored_sigterm_is_followed_by_sigkill_after_the_grace_time(node, pod):
    container = node.run(pod, "sh", "-c", "trap '' TERM; sleep 60")
    began = time.monotonic()
    node.call("StopContainer", container_id=container, timeout=1)
    assert 0.9 < time.monotonic() - began < 3
    assert node.status(container).exit_code == 137


def test_exec_runs_in_the_container_as_its_user_and_returns_its_exit_code(node, pod):
    container = node.run(pod, "sh", "-c", "touch /tmp/here; sleep 60")
    answer = node.exec(container, "sh", "-c", "ls /tmp; id -u; echo $GREETING; echo e >&2; exit 4")
    assert answer.exit_code == 4
    assert answer.stdout.decode().split() == ["here", str(_USER), "ahoy"]
    assert answer.stderr == b"e\n"


def test_an_exec_beyond_its_time_is_killed_and_reported_as_deadline_exceeded(node, pod):
    container = node.run(pod, "sleep", "60")
    fields = {"container_id": container, "cmd": ["sleep", "50"], "timeout": 1}
    error = _failure(node.call, name="ExecSync", **fields)
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (
        "50"
        not in node.exec(
            container, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
        ).stdout.decode()
    )


def test_mounts_resolve_links_inside_the_root_and_honour_read_only(node, pod, directory):
    source = directory / "volume"
    source.mkdir()
    source.chmod(0o777)
    (source / "token").write_text("secret")
    target = "/var/run/secrets/here"
    mounts = [
        api_pb2.Mount(container_path=target, host_path=str(source), readonly=True),
        api_pb2.Mount(container_path="/data", host_path=str(source)),
    ]
    script = f"cat {target}/token; echo; touch {target}/x || echo refused; touch /data/written"
    lines = node.output(node.run(pod, "sh", "-c", script, mounts=mounts)).splitlines()
    assert "secret" in lines
    assert "refused" in lines
    assert (source / "written").stat().st_uid == _USER
    assert not Path("/run/secrets/here").exists()


def test_pods_reach_each_other_by_address_and_may_bind_the_same_port(node):
    pods = [node.pod(f"peer{n}") for n in range(2)]
    server = (
        "import socket,sys; s=socket.create_server(('',80));\n"
        "while 1: c,_=s.accept(); c.sendall(sys.argv[1].encode()); c.close()"
    )
    ask = (
        "import socket,sys,time\n"
        "for _ in range(100):\n"
        "  try: print(socket.create_connection((sys.argv[1],80),1).recv(9).decode()); break\n"
        "  except OSError: time.sleep(.02)"
    )
    addresses = []
    for number, key in enumerate(pods):
        node.run(key, sys.executable, "-c", server, f"peer{number}", image="python")
        addresses.append(node.call("PodSandboxStatus", pod_sandbox_id=key).status.network.ip)
    for asker, number in ((0, 1), (1, 0)):
        got = node.run(pods[asker], sys.executable, "-c", ask, addresses[number], image="python")
        assert node.output(got) == f"peer{number}"
    assert node.inside(_PYTHON, "-c", ask, addresses[0]).strip() == "peer0"
    for key in pods:
        node.call("RemovePodSandbox", pod_sandbox_id=key)


def test_containers_of_a_pod_share_network_hostname_and_shared_memory(node, pod):
    node.wait(node.run(pod, "sh", "-c", "echo shared > /dev/shm/x"))
    script = "cat /dev/shm/x; hostname; cat /etc/resolv.conf"
    lines = node.output(node.run(pod, "sh", "-c", script)).splitlines()
    assert lines[0] == "shared"
    assert lines[1].startswith("test-containers-of-a-pod")
    assert lines[2:] == ["nameserver 10.96.0.10", "search svc.cluster.local"]


def test_stopping_a_pod_twice_and_removing_it_leaves_nothing(node):
    key = node.pod("short")
    container = node.run(key, "sleep", "60")
    for _ in range(2):
        node.call("StopPodSandbox", pod_sandbox_id=key)
    assert node.status(container).state == api_pb2.CONTAINER_EXITED
    for _ in range(2):
        node.call("RemovePodSandbox", pod_sandbox_id=key)
    assert not node.call(
        "ListContainers", filter=api_pb2.ContainerFilter(pod_sandbox_id=key)
    ).containers
    assert not (node.root / "pods" / key).exists()
    _until(lambda: f"ve{key[:12]}" not in node.inside("ip", "link"))


def test_when_the_runtime_is_killed_its_containers_die_and_are_reported_as_exited(node):
    key = node.pod("fragile")
    script = "setsid sleep 61 & sleep 62"
    containers = [node.run(key, "sh", "-c", script, image=image) for image in ("tools", "root")]
    pids = _pids_of("sleep 61", count=2) + _pids_of("sleep 62", count=2)
    node.kill()
    _until(lambda: not any(alive(pid) for pid in pids))
    _until(lambda: f"ve{key[:12]}" not in node.inside("ip", "link"))
    node.start()
    listed = node.call("ListPodSandbox", filter=api_pb2.PodSandboxFilter(id=key)).items
    assert [pod.state for pod in listed] == [api_pb2.SANDBOX_NOTREADY]
    for container in containers:
        status = node.status(container)
        assert (status.state, status.exit_code) == (api_pb2.CONTAINER_EXITED, 255)
    node.call("RemovePodSandbox", pod_sandbox_id=key)
    assert not node.call("ListContainers").containers


def test_sigterm_ends_the_runtime_with_everything_it_started(node):
    node.run(node.pod("last"), "sh", "-c", "trap '' TERM; sleep 63 & wait")
    pids = _pids_of("sleep 63", count=1)
    assert node.terminate() == 0
    assert not any(alive(pid) for pid in pids)
    assert "br0af40100" not in node.inside("ip", "link")
    assert str(node.root / "containers") not in node.inside("cat", "/proc/mounts")
    node.start()


def _pids_of(command: str, *, count: int) -> list[int]:
    """The pids of exactly `count` processes of this command line, once they are there."""
    wanted = command.replace(" ", "\0").encode() + b"\0"
    _until(lambda: len(_matching(wanted)) == count)
    return _matching(wanted)


def _matching(wanted: bytes) -> list[int]:
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes() == wanted:
                    pids.append(int(entry.name))
            except OSError:
                continue
    return pids


def _until(condition, *, timeout_s: float = 5) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
