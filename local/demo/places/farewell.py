"""The commands that the demo prints at its end. They work as they are printed.

Before a line is printed it is run in a shell of its own, in which nothing is set but what the lines
above it set. The figure `hints_work` says whether all of them succeeded.
"""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

HINT_LIMIT_S = 60


def settings(kubeconfig: Path, tools: Path) -> list[str]:
    """Lines that the commands need: kubectl and its argosy plug-in are in the folder `tools`."""
    return [
        f"export PATH={shlex.quote(str(tools.absolute()))}:$PATH",
        f"export KUBECONFIG={shlex.quote(str(kubeconfig.absolute()))}",
    ]


def commands(
    namespace: str, scaled: str, addresses: Mapping[str, str], *, curl: bool | None = None
) -> list[str]:
    """Commands to look around with.

    `addresses` maps each fleet that still runs to its URL on loopback. `curl` says whether curl is
    installed (None: look); a fresh Debian has none, and Python sends the request then.
    """
    lines = [f"kubectl get sd -n {namespace}", f"kubectl argosy explain {scaled} -n {namespace}"]
    curl = shutil.which("curl") is not None if curl is None else curl
    lines += [request(fleet, url, curl=curl) for fleet, url in sorted(addresses.items())]
    return lines


def request(fleet: str, url: str, *, curl: bool) -> str:
    """A line for the shell that asks the fleet for one completion."""
    body = json.dumps({"model": fleet, "prompt": "The capital of France is", "max_tokens": 8})
    place, kind = f"{url}/v1/completions", "Content-Type: application/json"
    if curl:
        return f"curl -sSf {place} -H '{kind}' -d '{body}'"
    name, _, value = kind.partition(": ")
    program = (
        "from urllib.request import Request, urlopen; "
        f'print(urlopen(Request("{place}", {json.dumps(body)}.encode(), '
        f'{{"{name}": "{value}"}})).read().decode())'
    )
    return f"python3 -c {shlex.quote(program)}"


def try_out(before: list[str], lines: list[str]) -> list[str]:
    """Run each line as a user would paste it; returns the failing ones with their errors."""
    bare = {"HOME": os.environ.get("HOME", "/"), "PATH": os.defpath}
    failed = []
    for line in lines:
        script = "\n".join([*before, line])
        done = subprocess.run(
            ["bash", "-euc", script],
            env=bare,
            capture_output=True,
            text=True,
            timeout=HINT_LIMIT_S,
            check=False,
        )
        if done.returncode:
            failed.append(f"{line}: {(done.stderr or done.stdout).strip()[-300:]}")
    return failed
