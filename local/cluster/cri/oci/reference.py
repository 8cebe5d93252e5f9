"""The name of an artifact in a registry: `<registry>/<repository>[:<tag>][@sha256:<hex>]`."""

import ipaddress
import re
from dataclasses import dataclass

_NAME = re.compile(
    r"(?P<registry>[A-Za-z0-9.-]+(:[0-9]+)?|\[[0-9A-Fa-f:]+\](:[0-9]+)?)"
    r"/(?P<repository>[a-z0-9][a-z0-9._/-]*?)"
    r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(@(?P<digest>sha256:[0-9a-f]{64}))?"
)


class PullError(Exception):
    """An artifact cannot be pulled; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Login:
    """What the kubelet gives from a pull secret."""

    user: str = ""
    password: str = ""
    token: str = ""
    """A bearer token for the registry itself; user and password are not used then."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Where an artifact is."""

    registry: str
    """Host, with its port where there is one."""
    repository: str
    tag: str
    """`latest` where neither tag nor digest is given; empty beside a digest alone."""
    digest: str
    """`sha256:…`, or empty."""

    @classmethod
    def parse(cls, text: str) -> "Reference | None":
        """None for a text without a registry, such as `tools` or `library/tools`."""
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        registry, tag, digest = found["registry"], found["tag"] or "", found["digest"] or ""
        if not any(mark in registry for mark in ".:") and registry != "localhost":
            return None
        return cls(registry, found["repository"], tag or ("" if digest else "latest"), digest)

    @property
    def host(self) -> str:
        """The registry without its port."""
        return host_of(self.registry)

    @property
    def at(self) -> str:
        """What the registry is asked for: a digest wins over a tag."""
        return self.digest or self.tag

    @property
    def url(self) -> str:
        """Of the repository, in the distribution API. Plain HTTP on loopback alone."""
        scheme = "http" if is_loopback(self.host) else "https"
        return f"{scheme}://{self.registry}/v2/{self.repository}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"


def host_of(registry: str) -> str:
    """Without port and brackets."""
    if registry.startswith("["):
        return registry[1:].partition("]")[0]
    return registry.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Whether nothing leaves this machine on the way to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def can_be_reached(host: str) -> bool:
    """Whether a node of this cluster can find `host`: it resolves no names but its own."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True
