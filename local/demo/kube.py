"""The demo's two ways to the API server: the real `kubectl` for what a user would do, and an HTTP
client for the live view, which reads once a second (a kubectl process costs 0.1 s of CPU).
"""

import base64
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml

from local.demo.errors import CommandError

TOOLS = Path(sys.executable).parent
"""The folder of kubectl and helm: both are packages of this Python's environment."""


class Kube:
    """The cluster that a kubeconfig names."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        path = f"{TOOLS}{os.pathsep}{os.environ.get('PATH', '')}"
        self.env = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": path}
        config = yaml.safe_load(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        user = config["users"][0]["user"]
        trust = ssl.create_default_context(cadata=_text(cluster, "certificate-authority"))
        headers = {}
        if "token" in user:
            headers["Authorization"] = f"Bearer {user['token']}"
        elif "client-certificate-data" in user or "client-certificate" in user:
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as pair:
                pair.write(_text(user, "client-certificate") + _text(user, "client-key"))
                pair.flush()
                trust.load_cert_chain(pair.name)
        self.http = httpx.Client(
            base_url=cluster["server"], verify=trust, headers=headers, timeout=5, trust_env=False
        )

    def get(self, path: str, **query: str) -> dict[str, Any] | None:
        """The object or list at an API path; None if it does not exist."""
        answer = self.http.get(path, params=query)
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def kubectl(self, *words: str, given: str | None = None) -> str:
        """Run kubectl; CommandError with its own message if it fails."""
        return self._run([str(TOOLS / "kubectl"), *words], given)

    def helm(self, *words: str) -> str:
        """Run helm; CommandError with its own message if it fails."""
        return self._run([str(TOOLS / "helm"), *words], None)

    def apply_crds(self, source: Path, *, timeout_s: float = 30) -> None:
        """Apply the CRDs of a file or folder; return once the API server serves them.

        A new CRD has null for conditions for an instant, and `kubectl wait` fails on that.
        """
        for name in self.kubectl("apply", "--server-side", "-f", str(source), "-o", "name").split():
            plain = name.rpartition("/")[2]
            self.wait(
                f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plain}",
                lambda found: condition(found, "Established").get("status") == "True",
                timeout_s=timeout_s,
                what=f"CRD {plain} is established",
            )

    def _run(self, words: list[str], given: str | None) -> str:
        done = subprocess.run(
            words, env=self.env, input=given, capture_output=True, text=True, check=False
        )
        if done.returncode:
            name = Path(words[0]).name
            raise CommandError(f"{name} {' '.join(words[1:4])} …: {done.stderr.strip()}")
        return done.stdout

    def wait(
        self,
        path: str,
        ready: Callable[[dict[str, Any]], bool],
        *,
        timeout_s: float,
        what: str,
        every_s: float = 0.25,
    ) -> dict[str, Any]:
        """Poll an object until `ready` holds. TimeoutError shows the object's conditions."""
        deadline = time.monotonic() + timeout_s
        found = None
        while time.monotonic() < deadline:
            found = self.get(path)
            if found is not None and ready(found):
                return found
            time.sleep(every_s)
        conditions = (found or {}).get("status", {}).get("conditions", "no such object")
        raise TimeoutError(
            f"{what}: not reached within {timeout_s:.0f} s; conditions: "
            f"{json.dumps(conditions)[:2000]}"
        )


def await_answer(url: str, timeout_s: float = 15) -> str:
    """Return `url` once a server behind it answers anything.

    kube-proxy learns of a Ready pod up to a second after the API server does, and refuses
    connections until then.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            httpx.get(url, timeout=5, trust_env=False)
            return url
        except httpx.TransportError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} does not answer: {error}") from error
        time.sleep(0.05)


def condition(found: dict[str, Any], kind: str) -> dict[str, Any]:
    """The condition of that type in an object's status; empty if there is none."""
    conditions = found.get("status", {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == kind), {})


def is_ready(found: dict[str, Any]) -> bool:
    """Whether Ready is True for the object's current generation."""
    generation = found["metadata"].get("generation")
    seen = found.get("status", {}).get("observedGeneration")
    return seen == generation and condition(found, "Ready").get("status") == "True"


def _text(part: dict[str, str], key: str) -> str:
    if f"{key}-data" in part:
        return base64.b64decode(part[f"{key}-data"]).decode()
    return Path(part[key]).read_text()
