"""Image volumes in the runtime, as the kubelet asks for them: pulled, mounted, removed."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from local.cluster.cri import api_pb2
from tests.local.node import Node
from tests.support import registry

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes namespaces and mounts"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs `ip`: install iproute2"),
]

MODEL = "127.0.0.1:5000/models/tiny:v1"
AUTH = api_pb2.AuthConfig(username="reader", password="right")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A node with a registry on its loopback, which has one model."""
    directory = Path(tempfile.mkdtemp(prefix="cri"))
    images, served, model = (directory / name for name in ("images.json", "served", "model"))
    images.write_text(json.dumps({"tools": {"user": 65532}}))
    (model / "sub").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "sub/tokenizer.json").write_text("tokens")
    registry.push(served, "models/tiny:v1", [registry.tar_of(model)])
    running = Node(directory, images)
    script = [sys.executable, registry.__file__, str(served), "5000", "reader", "right"]
    inside = ["nsenter", "-t", str(running._holder.pid), "-n"]
    running.inside("ip", "link", "set", "lo", "up")
    serving = subprocess.Popen([*inside, *script])
    try:
        connect = "import socket,time\nfor _ in range(100):\n try: socket.create_connection(('127.0.0.1',5000)); break\n except OSError: time.sleep(.05)"  # noqa: E501
        running.inside(sys.executable, "-c", connect)
        yield running
    finally:
        serving.terminate()
        serving.wait()
        running.close()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def pod(node: Node, request: pytest.FixtureRequest) -> Iterator[str]:
    key = node.pod(request.node.name[5:45].strip("_").replace("_", "-"))
    yield key
    node.call("RemovePodSandbox", pod_sandbox_id=key)


def pulled(node: Node) -> str:
    """The id under which the kubelet mounts the model."""
    image = api_pb2.ImageSpec(image=MODEL)
    return node.call("PullImage", image=image, auth=AUTH).image_ref


def mount(image: str, path: str = "/models", sub_path: str = "") -> api_pb2.Mount:
    spec = api_pb2.ImageSpec(image=image, user_specified_image=MODEL)
    return api_pb2.Mount(container_path=path, image=spec, image_sub_path=sub_path, readonly=True)


def images(node: Node, name: str = "") -> list[api_pb2.Image]:
    wanted = api_pb2.ImageFilter(image=api_pb2.ImageSpec(image=name))
    return list(node.call("ListImages", filter=wanted).images)


def refusal(node: Node, call: str, **fields: object) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        node.call(call, **fields)
    return caught.value.details()


def test_a_container_sees_the_model_and_cannot_write_it(node: Node, pod: str) -> None:
    image = pulled(node)
    both = [mount(image), mount(image, "/tokens", "sub")]
    script = "cat /models/config.json /tokens/tokenizer.json; echo x > /models/new"
    container = node.run(pod, "sh", "-c", script, mounts=both)
    assert node.wait(container).exit_code != 0
    output = node.output(container)
    assert "{}tokens" in output
    assert "Read-only file system" in output
    assert node.status(container).mounts[0].image.image == image


def test_a_sub_path_that_is_not_there_is_named_and_leads_nowhere_else(node: Node, pod: str) -> None:
    image = pulled(node)
    for sub_path in ("none", "../../../etc"):
        config = api_pb2.ContainerConfig(
            image=api_pb2.ImageSpec(image="tools"),
            command=["true"],
            mounts=[mount(image, sub_path=sub_path)],
        )
        said = refusal(node, "CreateContainer", pod_sandbox_id=pod, config=config)
        assert said.startswith("ImageVolumeMountFailed")
        assert sub_path in said


def test_a_pull_that_fails_says_why(node: Node) -> None:
    image = api_pb2.ImageSpec(image=MODEL)
    wrong = api_pb2.AuthConfig(username="reader", password="wrong")
    assert "pull secret" in refusal(node, "PullImage", image=image, auth=wrong)
    other = api_pb2.ImageSpec(image="127.0.0.1:5000/models/tiny:v2")
    assert "(404)" in refusal(node, "PullImage", image=other, auth=AUTH)
    away = api_pb2.ImageSpec(image="registry.example.com/models/tiny:v1")
    assert "at an IP address" in refusal(node, "PullImage", image=away, auth=AUTH)
