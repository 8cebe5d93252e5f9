"""A Prometheus behind an authority of its own, with a token and a tenant, that all rotate."""

import asyncio
import datetime as dt
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.serialization import Encoding

from argosy_law.observe import Idle, Unknown
from argosy_operator.adapters.prometheus.allowlist import Allowlist
from argosy_operator.adapters.prometheus.metrics import PrometheusMetrics
from argosy_operator.adapters.prometheus.server import ServerAccess
from local.cluster.config.pki import issue, make_authority
from tests.prometheus.processes import prometheus
from tests.prometheus.test_real_server import ASKED, Exporter, gateway_of

NOW = dt.datetime.now(dt.UTC)


def certify(folder: Path, bundle: Path) -> None:
    """A certificate for 127.0.0.1 in `folder`, of a new authority, whose own is in `bundle`."""
    by = make_authority(NOW)
    bundle.write_bytes(by.certificate.public_bytes(Encoding.PEM))
    names = ("crt", "key")
    for name, content in zip(names, issue(by, "server", "", ["127.0.0.1"], NOW), strict=True):
        (folder / name).write_bytes(content)


@dataclass
class Asked:
    """A server with TLS that notes the headers of every request and keeps no connection."""

    headers: list[dict[str, str]] = field(default_factory=list)
    status: int = 200

    async def answer(self, request: web.Request) -> web.Response:
        self.headers.append(dict(request.headers))
        rows = [{"metric": {}, "value": [1000.0, "1000"]}]
        body = {"status": "success", "data": {"result": rows}}
        response = web.json_response(body) if self.status == 200 else web.Response(status=401)
        response.force_close()
        return response


@asynccontextmanager
async def asked(folder: Path) -> AsyncIterator[tuple[str, Asked, ssl.SSLContext]]:
    seen = Asked()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "crt", folder / "key")
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", seen.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    try:
        yield f"https://127.0.0.1:{port}", seen, tls
    finally:
        await runner.cleanup()


async def reason(url: str, access: ServerAccess | None, allowed: Allowlist | None = None) -> str:
    """Why there are no arrivals, of a port that is made for this one round."""
    port = PrometheusMetrics(
        None if allowed else url, access=access, allowed=allowed or Allowlist()
    )
    try:
        arrivals = (await port.ask(url, ASKED)).metrics.arrivals
    finally:
        port.close()
    assert isinstance(arrivals, Unknown)
    return arrivals.reason


async def test_an_authority_that_is_not_trusted_is_named_and_one_that_is_new_is_read(
    tmp_path: Path,
) -> None:
    bundle = tmp_path / "ca.crt"
    certify(tmp_path, bundle)
    access = ServerAccess(ca_file=bundle)
    async with asked(tmp_path) as (url, seen, tls):
        assert "prometheus.ca" in await reason(url, None)
        assert seen.headers == []
        assert (await reason(url, access)).startswith("NoGatewayTarget")
        certify(tmp_path, tmp_path / "next.crt")
        tls.load_cert_chain(tmp_path / "crt", tmp_path / "key")
        assert "prometheus.ca" in await reason(url, access)
        (tmp_path / "next.crt").replace(bundle)
        assert (await reason(url, access)).startswith("NoGatewayTarget")


async def test_token_and_headers_are_sent_as_the_files_say_now(tmp_path: Path) -> None:
    certify(tmp_path, tmp_path / "ca.crt")
    folder, token = tmp_path / "headers", tmp_path / "token"
    (folder / "..data").mkdir(parents=True)
    (folder / "X-Scope-OrgID").write_text("team-a\n")
    token.write_text("first\n")
    access = ServerAccess(
        token_file=token,
        ca_file=tmp_path / "ca.crt",
        headers={"X-Plain": "1"},
        headers_folder=folder,
    )
    async with asked(tmp_path) as (url, seen, _):
        await reason(url, access)
        first = seen.headers.pop()
        (folder / "X-Scope-OrgID").write_text("team-b")
        token.write_text("second")
        await reason(url, access)
        second = seen.headers.pop()
    assert (first["Authorization"], second["Authorization"]) == ("Bearer first", "Bearer second")
    assert (first["X-Scope-OrgID"], second["X-Scope-OrgID"]) == ("team-a", "team-b")
    assert first["X-Plain"] == second["X-Plain"] == "1"


async def test_nothing_of_it_goes_to_an_address_that_a_fleet_names(tmp_path: Path) -> None:
    certify(tmp_path, tmp_path / "ca.crt")
    (tmp_path / "token").write_text("secret")
    access = ServerAccess(token_file=tmp_path / "token", headers={"X-Scope-OrgID": "team-a"})
    seen = Asked()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", seen.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    await reason(f"http://127.0.0.1:{port}", access, Allowlist.of([f"127.0.0.0/8:{port}"]))
    await runner.cleanup()
    assert seen.headers
    assert all("Authorization" not in one and "X-Scope-OrgID" not in one for one in seen.headers)


async def test_a_server_that_asks_for_a_token_is_answered_with_where_to_set_it(
    tmp_path: Path,
) -> None:
    certify(tmp_path, tmp_path / "ca.crt")
    async with asked(tmp_path) as (url, seen, _):
        seen.status = 401
        said = await reason(url, ServerAccess(ca_file=tmp_path / "ca.crt"))
    assert "HTTP 401" in said
    assert "prometheus.tokenSecret" in said
    assert "prometheus.headers" in said


@pytest.mark.parametrize("name", ["token_file", "ca_file", "headers_folder"])
async def test_a_file_that_is_missing_is_named(name: str, tmp_path: Path) -> None:
    certify(tmp_path, tmp_path / "ca.crt")
    access = ServerAccess(**{"ca_file": tmp_path / "ca.crt", name: tmp_path / "missing"})
    async with asked(tmp_path) as (url, seen, _):
        said = await reason(url, access)
    assert str(tmp_path / "missing") in said
    assert seen.headers == []


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.long
async def test_a_real_prometheus_behind_a_private_authority_is_asked(tmp_path: Path) -> None:
    certify(tmp_path, tmp_path / "ca.crt")
    exporter = Exporter()
    exporter.received(5)
    files = f"{{cert_file: {tmp_path / 'crt'}, key_file: {tmp_path / 'key'}}}"
    with prometheus(tmp_path, gateway_of(exporter.port), f"tls_server_config: {files}\n") as url:
        port = PrometheusMetrics(url, access=ServerAccess(ca_file=tmp_path / "ca.crt"))
        for _ in range(60):
            arrivals = (await port.ask(url, ASKED)).metrics.arrivals
            if isinstance(arrivals, Idle):
                break
            await asyncio.sleep(0.25)
        port.close()
    assert isinstance(arrivals, Idle), arrivals
