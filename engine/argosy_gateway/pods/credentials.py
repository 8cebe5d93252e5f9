"""Address of the API server and how to log in to it: from in-cluster files, or a kubeconfig.

`cli` makes an ApiServer, `watch` uses it. The kubelet replaces the files of the token and of the
certificate authority from time to time, so both are read again for every request.
"""

import base64
import json
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from argosy_gateway.errors import CredentialsError

__all__ = ["ApiServer", "from_kubeconfig", "in_cluster"]

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Address, TLS and token of one API server."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    """From a kubeconfig; None means plain HTTP, unless `ca_file` is set."""
    token: str | None = None
    token_file: Path | None = None
    """Used instead of `token` if set."""
    ca_file: Path | None = None
    """Certificate authority of the service account; makes the TLS context if set."""

    def context(self) -> ssl.SSLContext | None:
        """TLS of the next connection; reads `ca_file`. Raises OSError."""
        if self.ca_file is None:
            return self.tls
        return ssl.create_default_context(cafile=str(self.ca_file))

    def headers(self) -> list[tuple[str, str]]:
        """Headers of the next request; reads `token_file`. Raises OSError."""
        token = self.token_file.read_text().strip() if self.token_file else self.token
        return [("authorization", f"Bearer {token}")] if token else []


def in_cluster(environ: Mapping[str, str] = os.environ, account: Path = _ACCOUNT) -> ApiServer:
    """From the pod's environment and its service account. Raises CredentialsError."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    token_file = account / "token"
    if not host or not port or not token_file.exists():
        raise CredentialsError(
            "not in a cluster: KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT or the service "
            "account's token is missing; outside a cluster, set --kubeconfig PATH"
        )
    return ApiServer(host, int(port), token_file=token_file, ca_file=account / "ca.crt")


def from_kubeconfig(path: Path) -> ApiServer:
    """From a kubeconfig's current context: token, token file or client certificate.

    Raises CredentialsError, also if the user logs in by a program (`exec`).
    """
    config = _read(path)
    context = _find_entry(config, "contexts", config.get("current-context"), path)["context"]
    cluster = _find_entry(config, "clusters", context["cluster"], path)["cluster"]
    user = _find_entry(config, "users", context["user"], path)["user"] or {}
    if "exec" in user or "auth-provider" in user:
        raise CredentialsError(
            f"{path}: the user logs in by a program; use a kubeconfig with a token or certificate"
        )
    url = urlsplit(cluster["server"])
    token_file = path.parent / user["tokenFile"] if user.get("tokenFile") else None
    return ApiServer(
        url.hostname or "localhost",
        url.port or (443 if url.scheme == "https" else 80),
        _tls(cluster, user, path.parent) if url.scheme == "https" else None,
        token=user.get("token"),
        token_file=token_file,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except OSError as error:
        raise CredentialsError(f"{path}: {error.strerror}") from error
    try:
        config = json.loads(text)
    except ValueError:
        config = _from_yaml(text, path)
    if not isinstance(config, dict):
        raise CredentialsError(f"{path} is not a kubeconfig")
    return config


def _from_yaml(text: str, path: Path) -> Any:
    try:
        import yaml  # only outside a cluster; the gateway's image does not have it
    except ModuleNotFoundError as error:
        raise CredentialsError(
            f"{path} is YAML and PyYAML is not installed: pip install pyyaml, or write JSON "
            "(kubectl config view --raw -o json)"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CredentialsError(f"{path}: {error}") from error


def _find_entry(
    config: Mapping[str, Any], kind: str, name: object, path: Path
) -> Mapping[str, Any]:
    for entry in config.get(kind) or []:
        if entry.get("name") == name:
            return dict(entry)
    raise CredentialsError(f"{path}: no entry '{name}' in '{kind}'")


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], base: Path) -> ssl.SSLContext:
    authority = _inline_or_file(cluster, "certificate-authority", base)
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = _inline_or_file(user, "client-certificate", base)
    key = _inline_or_file(user, "client-key", base)
    if certificate and key:
        # The ssl module loads a chain only from files.
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:
            file.write(certificate + b"\n" + key)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _inline_or_file(entry: Mapping[str, Any], name: str, base: Path) -> bytes | None:
    if entry.get(f"{name}-data"):
        return base64.b64decode(entry[f"{name}-data"])
    return (base / entry[name]).read_bytes() if entry.get(name) else None
