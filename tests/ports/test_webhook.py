"""The bundle in the webhook's configuration, before an HTTP server that answers as the API server.

tests/e2e/test_webhook.py reads and writes it at a real one.
"""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.ports.access import Access
from argosy_operator.ports.protocols import ClusterError
from argosy_operator.ports.webhook import NAME, ApiBundle

PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/mine"


class Server:
    """Answers with one object, and keeps what it was sent."""

    def __init__(self, *webhooks: dict[str, Any], status: int = 200) -> None:
        meta = {"name": "mine", "resourceVersion": "7"}
        self.object = {"metadata": meta, "webhooks": list(webhooks)}
        self.status, self.sent = status, list[Any]()

    async def _answer(self, request: web.Request) -> web.Response:
        if request.method == "PATCH":
            assert request.content_type == "application/strategic-merge-patch+json"
            self.sent.append(await request.json())
        if self.status != 200:
            return web.json_response({"message": "no"}, status=self.status)
        return web.json_response(self.object)

    @asynccontextmanager
    async def bundle(self, folder: Path) -> AsyncIterator[ApiBundle]:
        app = web.Application()
        app.router.add_route("*", PATH, self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        try:
            async with ApiBundle(Access(str(path)), "mine") as found:
                yield found
        finally:
            await runner.cleanup()


def webhook(**client: str) -> dict[str, Any]:
    return {"name": NAME, "clientConfig": client}


@pytest.mark.parametrize(
    ("given", "bundle"),
    [
        (webhook(caBundle=base64.b64encode(b"pem").decode()), b"pem"),
        (webhook(), b""),
        (webhook(caBundle="no base64!"), b""),
    ],
)
async def test_the_bundle_is_read_with_the_objects_version(
    given: dict[str, Any], bundle: bytes, tmp_path: Path
) -> None:
    async with Server({"name": "another.example.com"}, given).bundle(tmp_path) as api:
        assert await api.read() == (bundle, "7")


async def test_only_the_bundle_is_written_and_only_on_that_version(tmp_path: Path) -> None:
    server = Server(webhook())
    async with server.bundle(tmp_path) as api:
        await api.write(b"pem", "7")
    text = base64.b64encode(b"pem").decode()
    assert server.sent == [
        {"metadata": {"resourceVersion": "7"}, "webhooks": [webhook(caBundle=text)]}
    ]


async def test_a_configuration_without_the_webhook_is_named_with_what_to_do(
    tmp_path: Path,
) -> None:
    async with Server({"name": "another.example.com"}).bundle(tmp_path) as api:
        with pytest.raises(ClusterError, match="install the chart's configuration again"):
            await api.read()


@pytest.mark.parametrize(
    ("status", "kind"),
    [(403, ErrorKind.FORBIDDEN), (404, ErrorKind.NOT_FOUND), (409, ErrorKind.CONFLICT)],
)
async def test_a_refusal_is_an_error_with_its_kind(
    status: int, kind: ErrorKind, tmp_path: Path
) -> None:
    async with Server(status=status).bundle(tmp_path) as api:
        with pytest.raises(ClusterError) as found:
            await api.write(b"pem", "7")
    assert found.value.kind is kind
    assert "ValidatingWebhookConfiguration mine" in found.value.what
