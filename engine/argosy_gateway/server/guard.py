"""One client's connection: see `argosy.http_server.Guard`, with what the app wants to know."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from argosy import http_server
from argosy_gateway.server.app import CLIENT, RECEIVED_AT
from argosy_gateway.server.client import Client

__all__ = ["Guard"]


class Guard(http_server.Guard):
    """Tells the app when the first byte of a request came, and when its client leaves."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._client: Client | None = None
        """Of the latest request."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._client is not None:
            self._client.connection_lost()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self.in_head:
            self.scope["state"][RECEIVED_AT] = self.loop.time()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._client = cycle.scope["state"][CLIENT] = Client(cycle)
        super()._start_asgi_task(cycle, app)
