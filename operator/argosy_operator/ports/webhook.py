"""The caBundle of one ValidatingWebhookConfiguration: all that the webhook's account may touch."""

import asyncio
import base64
import binascii
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient, ApiException
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.dynamic import DynamicClient

from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.ports.access import Access, AccessError
from argosy_operator.ports.cluster import NO_TIMEOUT, classified
from argosy_operator.ports.protocols import ClusterError

DEADLINE_S = 10.0
NAME = "warnings.serving.argosy.dev"
"""The webhook's name in its configuration, which the chart writes."""
MANAGER = "argosy-webhook"
_PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/"


class ApiBundle:
    """`shell.webhook.rotation.Bundle` on a real API server. `async with` opens and closes it."""

    def __init__(self, access: Access, configuration: str) -> None:
        """`configuration` is the object's name."""
        self._access, self._name = access, configuration
        self._api: ApiClient | None = None

    async def __aenter__(self) -> "ApiBundle":
        self._api = ApiClient(await self._access.configuration())
        self._api.user_agent = MANAGER
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._api is not None:
            await self._api.close()

    async def read(self) -> tuple[bytes, str]:
        """The bundle as PEM, empty for none, and the object's resourceVersion. Raises
        ClusterError."""
        found = await self._call("get")
        for webhook in found.get("webhooks") or ():
            if webhook.get("name") == NAME:
                text = (webhook.get("clientConfig") or {}).get("caBundle") or ""
                return _bytes(text), str(found["metadata"]["resourceVersion"])
        why = f"it has no webhook {NAME}: install the chart's configuration again"
        raise ClusterError(ErrorKind.INVALID, self._what("get"), why)

    async def write(self, bundle: bytes, version: str) -> None:
        """Replace the bundle, if the object is still of that version. Raises ClusterError."""
        text = base64.b64encode(bundle).decode()
        body = {
            "metadata": {"resourceVersion": version},
            "webhooks": [{"name": NAME, "clientConfig": {"caBundle": text}}],
        }
        # Merged by the webhook's name: whatever else the chart or a person wrote stays.
        merge = "application/strategic-merge-patch+json"
        await self._call("patch", body=body, content_type=merge, field_manager=MANAGER)

    def _what(self, method: str) -> str:
        return f"{method} ValidatingWebhookConfiguration {self._name}"

    async def _call(self, method: str, **params: Any) -> dict[str, Any]:
        what = self._what(method)
        client = DynamicClient(self._api)
        try:
            async with asyncio.timeout(DEADLINE_S):
                answer: dict[str, Any] = await client.request(
                    method,
                    _PATH + self._name,
                    serializer=lambda _client, data: data,
                    _request_timeout=NO_TIMEOUT,
                    **params,
                )
        except ApiException as error:
            raise classified(error, what) from error
        except TimeoutError as error:
            message = f"no answer within {DEADLINE_S:.0f} s"
            raise ClusterError(ErrorKind.TRANSPORT, what, message) from error
        except (AccessError, ConfigException) as error:
            raise ClusterError(ErrorKind.UNAUTHORIZED, what, str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            message = f"{type(error).__name__}: {error}"
            raise ClusterError(ErrorKind.TRANSPORT, what, message) from error
        return answer


def _bytes(text: str) -> bytes:
    """What base64 stands for; nothing for a text that is none."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
