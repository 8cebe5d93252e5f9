"""Lines of logs behind the names of their pods, and how long `--since` is. Pure."""

import re

from argosy_operator.cli.kubectl.exits import CommandError, Exit
from argosy_operator.core.fleet.objects import Object

MAIN_CONTAINERS = ("engine", "gateway")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(text: str) -> int:
    """A duration such as 90s, 10m or 1h30m in whole seconds, 1 at least. Raises CommandError."""
    parts = _PART.findall(text)
    if not parts or "".join(f"{number}{unit}" for number, unit in parts) != text:
        raise CommandError(f"{text!r} is no duration: write 30s, 10m or 2h", Exit.USAGE)
    return max(1, round(sum(float(number) * _SECONDS[unit] for number, unit in parts)))


def container_of(pod: Object) -> str:
    """The container of ours in the pod: a webhook may have added others."""
    containers = [str(container["name"]) for container in pod["spec"]["containers"]]
    return next((name for name in MAIN_CONTAINERS if name in containers), containers[0])


def prefixed(pod: Object, line: str) -> str:
    return f"[{pod['metadata']['name']}] {line}"
