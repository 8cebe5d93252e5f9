"""How the API server is reached: one configuration for both of the operator's clients.

`Access` reads the mounted ServiceAccount or a kubeconfig (tokens, certificates, exec users)
through `kubernetes.aio`, for `cluster.py` and for kopf (`shell/trigger.py`), whose own login
handlers support neither exec users nor rotated tokens. Credentials are read again every minute.

In a cluster the API server is reached without a proxy. With a kubeconfig the environment counts as
it does for kubectl, which Python's own reading does not give: NO_PROXY may name networks, and
loopback has no proxy.
"""

import os
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import requests.utils
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import (
    list_kube_config_contexts,
    load_incluster_config,
    load_kube_config,
)
from kubernetes.aio.config.config_exception import ConfigException
from yaml import YAMLError

REREAD_S = 60.0
"""A rotated token file or a short-lived exec token is picked up within this time."""


_UNUSABLE = (ConfigException, OSError, YAMLError, AttributeError, KeyError, TypeError, ValueError)
"""What the client raises for a kubeconfig that is none, or cannot be read."""


class AccessError(Exception):
    """No usable credentials; the message says where the operator looked for them."""


class Access:
    """Credentials from `kubeconfig`, $KUBECONFIG, the pod's ServiceAccount or ~/.kube."""

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        """`context` is one of the kubeconfig; None: its current one."""
        self.kubeconfig = kubeconfig or os.environ.get("KUBECONFIG") or None
        self.context = context

    async def configuration(self) -> Configuration:
        """Return a new configuration, which reads its credentials again once a minute."""
        configuration = Configuration()
        if await self._fill(configuration):
            hook: Any = _Reread(self._fill)  # the client's own type for it is None
            configuration.refresh_api_key_hook = hook
        # The loop backs off by itself; retries of the client would hide throttling from it.
        configuration.retries = None
        configuration.client_session_kwargs = {"trust_env": False}
        return configuration

    def namespace(self) -> str:
        """Return the namespace that kubectl uses: that of the context, else `default`.

        Raises AccessError for a context that the kubeconfig does not have.
        """
        try:
            contexts, current = list_kube_config_contexts(self.kubeconfig)
        except _UNUSABLE:
            return "default"  # connecting fails next, and says what is wrong with the file
        if self.context is not None:
            known = {context["name"]: context for context in contexts}
            if self.context not in known:
                there = ", ".join(sorted(known)) or "none"
                raise AccessError(f"no context {self.context} in the kubeconfig; it has: {there}")
            current = known[self.context]
        return str(current["context"].get("namespace") or "default")

    async def _fill(self, configuration: Configuration) -> bool:
        """Read the credentials. True if they must be read again from time to time."""
        named = self.kubeconfig is not None or self.context is not None
        in_cluster = not named and "KUBERNETES_SERVICE_HOST" in os.environ
        try:
            if in_cluster:
                load_incluster_config(configuration)  # its own hook reads the token file again
                return False
            await load_kube_config(
                self.kubeconfig,
                context=self.context,
                client_configuration=configuration,
                persist_config=False,
            )
        except _UNUSABLE as error:
            looked = self.kubeconfig or "~/.kube/config (no KUBECONFIG, no ServiceAccount)"
            why = " ".join(str(error).split())
            raise AccessError(f"no access to a cluster from {looked}: {why}") from error
        configuration.proxy = configuration.proxy or _proxy(configuration.host)
        return True


def _proxy(server: str) -> str | None:
    """Return the environment's proxy for the API server, unless it is of another kind than HTTP."""
    host = urlsplit(server).hostname or ""
    if host in ("localhost", "::1") or host.startswith("127."):
        return None
    found = requests.utils.select_proxy(server, requests.utils.get_environ_proxies(server))
    if found and "://" not in found:
        found = f"http://{found}"
    return found if found and found.startswith(("http://", "https://")) else None


class _Reread:
    """Hook of the client before each call: reads the kubeconfig again once a minute."""

    def __init__(self, fill: Callable[[Configuration], Awaitable[bool]]) -> None:
        self._fill = fill
        self._read_at = time.monotonic()

    async def __call__(self, configuration: Configuration) -> None:
        if time.monotonic() - self._read_at >= REREAD_S:
            self._read_at = time.monotonic()
            await self._fill(configuration)
