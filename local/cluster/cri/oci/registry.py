"""Reads one repository of a registry: the OCI distribution API, version 2, and its two logins.

Three kinds of GET are all that a pull takes, so it is httpx, which the cluster's environment has,
and no client library: the one on PyPI (oras) chooses no platform and brings four packages.
"""

import base64
import hashlib
import json
import platform
import re
import ssl
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from local.cluster.cri.oci.reference import Login, PullError, Reference, is_loopback

_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_MANIFEST_BYTES = 4 << 20
"""The most that a manifest may have, as the specification says."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_PLATFORM = {
    "os": "linux",
    "architecture": _MACHINES.get(platform.machine(), platform.machine()),
}
_TIMEOUT = httpx.Timeout(30, connect=5)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of an artifact."""

    media_type: str
    digest: str
    size: int
    """Bytes of the blob."""
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a reference stands for."""

    digest: str
    """Of what the reference names: the index, where it names one."""
    layers: tuple[Layer, ...]
    """In the order in which they are unpacked."""


class Registry:
    """One repository. A context manager; every error is a PullError."""

    def __init__(self, reference: Reference, login: Login | None) -> None:
        self._reference, self._login = reference, login
        # create_default_context reads SSL_CERT_FILE; the proxies of the environment are not for
        # nodes.
        self._client = httpx.Client(
            auth=_Auth(login),
            follow_redirects=True,
            timeout=_TIMEOUT,
            trust_env=False,
            verify=ssl.create_default_context(),
            event_hooks={"request": [_refuse_plain]},
        )

    def __enter__(self) -> "Registry":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def manifest(self) -> Manifest:
        """The manifest of the reference, or of this machine's platform where it is an index."""
        digest, document = self._document(self._reference.at)
        chosen = document
        if "manifests" in document:
            _, chosen = self._document(self._of_platform(document["manifests"]))
        if "layers" not in chosen:
            raise PullError(
                f"{self._reference} is {chosen.get('mediaType', 'of an unknown kind')}, which is "
                "no image manifest: push it as an OCI artifact"
            )
        try:
            layers = tuple(_layer(layer) for layer in chosen["layers"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PullError(f"the manifest of {self._reference} is not valid: {error}") from error
        return Manifest(digest, layers)

    def blob(self, layer: Layer, out: Path) -> None:
        """Write a layer's bytes to `out`, compared with its size and digest."""
        digest, size = hashlib.sha256(), 0
        try:
            with (
                self._client.stream("GET", self._url("blobs", layer.digest)) as response,
                out.open("wb") as file,
            ):
                self._expect(response, f"the layer {layer.digest}")
                for part in response.iter_raw(1 << 20):
                    size += len(part)
                    if size > layer.size:
                        break
                    digest.update(part)
                    file.write(part)
        except httpx.HTTPError as error:
            raise self._unanswered(error) from error
        if size != layer.size or f"sha256:{digest.hexdigest()}" != layer.digest:
            raise PullError(
                f"{self._reference.registry} sent other bytes for layer {layer.digest} of "
                f"{self._reference} than its manifest says: push the artifact again"
            )

    def _document(self, name: str) -> tuple[str, dict[str, Any]]:
        """(digest, content) of a manifest or an index."""
        headers = {"Accept": ", ".join((*_INDEXES, *_MANIFESTS))}
        body = b""
        try:
            with self._client.stream(
                "GET", self._url("manifests", name), headers=headers
            ) as response:
                self._expect(response, f"{self._reference.repository} {name}")
                for part in response.iter_bytes():
                    body += part
                    if len(body) > _MANIFEST_BYTES:
                        raise PullError(f"the manifest of {self._reference} is larger than 4 MiB")
        except httpx.HTTPError as error:
            raise self._unanswered(error) from error
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if name.startswith("sha256:") and digest != name:
            raise PullError(
                f"{self._reference.registry} sent a manifest with the digest {digest} for {name}"
            )
        try:
            document = json.loads(body)
        except ValueError as error:
            raise PullError(f"the manifest of {self._reference} is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise PullError(f"the manifest of {self._reference} is not a JSON object")
        return digest, document

    def _of_platform(self, manifests: Any) -> str:
        """The digest of the manifest for this machine; one alone needs no platform."""
        try:
            fitting = [
                item["digest"]
                for item in manifests
                if len(manifests) == 1 or (item.get("platform") or {}).items() >= _PLATFORM.items()
            ]
        except (TypeError, KeyError, AttributeError) as error:
            raise PullError(f"the index of {self._reference} is not valid: {error}") from error
        if not fitting or not _DIGEST.fullmatch(str(fitting[0])):
            raise PullError(
                f"{self._reference} has nothing for {'/'.join(_PLATFORM.values())}: push an "
                "artifact without a platform, or one for it"
            )
        return str(fitting[0])

    def _url(self, kind: str, name: str) -> str:
        return f"{self._reference.url}/{kind}/{name}"

    def _expect(self, response: httpx.Response, what: str) -> None:
        """PullError unless the answer is 200."""
        registry, status = self._reference.registry, response.status_code
        if status == 200:
            return
        if status in (401, 403):
            given = "the user or the password of the pull secret is wrong, or may not read it"
            none = f"the pod has no pull secret for {registry}: name one in imagePullSecrets"
            raise PullError(
                f"registry {registry} refuses to give {what} ({status}): "
                f"{given if self._login else none}"
            )
        if status == 404:
            raise PullError(f"registry {registry} has no {what} (404): push it, or correct its tag")
        raise PullError(f"registry {registry} answers {status} when asked for {what}")

    def _unanswered(self, error: Exception) -> PullError:
        registry = self._reference.registry
        return PullError(f"registry {registry} does not answer for {self._reference}: {error}")


class _Auth(httpx.Auth):
    """Answers a 401 once, as its challenge asks: Basic, or a token from the server that it names.

    httpx leaves the header out where a registry redirects to another host.
    """

    def __init__(self, login: Login | None) -> None:
        self._login = login
        self._header = f"Bearer {login.token}" if login is not None and login.token else ""

    def sync_auth_flow(
        self, request: httpx.Request
    ) -> Generator[httpx.Request, httpx.Response, None]:
        if self._header:
            request.headers["Authorization"] = self._header
        response = yield request
        if response.status_code != 401 or (self._login is not None and self._login.token):
            return
        scheme, _, rest = response.headers.get("WWW-Authenticate", "").partition(" ")
        header = self._basic()
        if scheme.lower() == "bearer":
            answer = yield _token_request(request, rest, header)
            header = _token(answer)
        if header:
            self._header = request.headers["Authorization"] = header
        # Also without a token: what a token server says is no answer to the request.
        yield request

    def _basic(self) -> str:
        if self._login is None:
            return ""
        pair = f"{self._login.user}:{self._login.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"


def _token_request(request: httpx.Request, challenge: str, basic: str) -> httpx.Request:
    """The request for a token, from the words of the challenge."""
    said = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = said.pop("realm", "")
    if not realm.startswith(("https://", "http://")):
        raise PullError(f"registry {request.url.host} names no server for tokens: {challenge!r}")
    asked = {key: said[key] for key in ("service", "scope") if key in said}
    headers = {"Authorization": basic} if basic else {}
    return httpx.Request("GET", httpx.URL(realm).copy_merge_params(asked), headers=headers)


def _token(answer: httpx.Response) -> str:
    """The header with the token; empty when none was given."""
    answer.read()
    if answer.status_code != 200:
        return ""
    try:
        said = answer.json()
        token = said.get("token") or said.get("access_token")
    except (ValueError, AttributeError):
        token = None
    return f"Bearer {token}" if token else ""


def _refuse_plain(request: httpx.Request) -> None:
    """For redirects and token servers too: nothing secret leaves this machine in the clear."""
    if request.url.scheme != "https" and not is_loopback(request.url.host):
        raise PullError(f"{request.url.host} is asked without TLS: only loopback may be")


def _layer(said: dict[str, Any]) -> Layer:
    if not _DIGEST.fullmatch(str(said["digest"])):
        raise ValueError(f"digest {said['digest']!r} is not sha256:<64 hex digits>")
    return Layer(
        str(said.get("mediaType", "")),
        str(said["digest"]),
        int(said["size"]),
        dict(said.get("annotations") or {}),
    )
