"""The webhook as a process: HTTPS for the API server, probes beside it, until a signal ends it."""

import asyncio
import datetime as dt
import logging
import signal
import ssl
from dataclasses import dataclass

from aiohttp import web

from argosy.descriptors import Listener
from argosy_law.record import parse_json
from argosy_operator.ports.access import Access
from argosy_operator.ports.webhook import ApiBundle
from argosy_operator.shell.telemetry.health import serve
from argosy_operator.shell.webhook.answer import NoReviewError, answer
from argosy_operator.shell.webhook.rotation import Rotation

log = logging.getLogger("argosy.webhook")

PATH = "/warnings"
_CONNECTIONS = 128
"""Most callers at a time: the API server keeps a few, and every pod may connect."""
LARGEST = 8 * 2**20
"""Bytes of a review: the object as it was and as it will be, each of at most 1.5 MiB in etcd."""


@dataclass(frozen=True, slots=True)
class Options:
    """What `argosy operator webhook` was started with; `cli/webhook.py` has the flags."""

    configuration: str
    """Name of the ValidatingWebhookConfiguration."""
    host: str
    """The name by which the API server calls: that of the Service."""
    lifetime: dt.timedelta
    """Of a certificate."""
    port: int = 8443
    metrics_port: int = 8081
    kubeconfig: str | None = None
    """None: $KUBECONFIG, else the pod's ServiceAccount."""


async def run(options: Options) -> int:
    """Answer until SIGTERM or SIGINT. Returns the exit status."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    async with ApiBundle(Access(options.kubeconfig), options.configuration) as api:
        rotation = Rotation(api, options.host, options.lifetime, context)
        probes = await serve(rotation, "0.0.0.0", options.metrics_port)
        runner = web.AppRunner(application(), access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        keeping = asyncio.create_task(rotation.run())
        try:
            sock = Listener(("0.0.0.0", options.port), most=_CONNECTIONS, backlog=_CONNECTIONS)
            await web.SockSite(runner, sock, ssl_context=context, backlog=_CONNECTIONS).start()
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({stopped, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                keeping.result()  # a fault of ours: it ends the process with its traceback
            return 0
        finally:
            keeping.cancel()
            probes.close()
            await runner.cleanup()


def application() -> web.Application:
    """What answers the API server."""
    app = web.Application(client_max_size=LARGEST)
    app.router.add_post(PATH, _warnings)
    return app


async def _warnings(request: web.Request) -> web.Response:
    try:
        return web.json_response(answer(parse_json(await request.read())))
    except (NoReviewError, ValueError) as error:
        return web.Response(status=400, text=f"{error}\n")
