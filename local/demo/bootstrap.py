"""First step of `make demo`: prepares the machine with Python's standard library alone.

On an empty machine two things take minutes and need different resources: the Kubernetes binaries
(compiler, cores) and the Python environment with torch (download, disk). They run side by side. The
build writes to `build/demo/build.log`, and `local.demo` waits for it where it needs it.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:  # noqa: RET503
    """Prepare, then replace this process by the demo in the environment .venv."""
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.stderr.write(
            "the demo needs Python 3.11 or newer: make demo PYTHON=/path/to/python3.11\n"
        )
        return 1
    os.chdir(ROOT)
    logs = ROOT / "build" / "demo"
    logs.mkdir(parents=True, exist_ok=True)
    build = None
    if "--kubeconfig" not in sys.argv:
        preflight = subprocess.run([sys.executable, "-m", "local.cluster.preflight"], check=False)
        if preflight.returncode:
            return preflight.returncode
        with (logs / "build.log").open("wb") as log:
            build = subprocess.Popen(
                [sys.executable, "-u", "-m", "local.cluster.build"], stdout=log, stderr=log
            )
    make = os.environ.get("MAKE", "make")
    ready = subprocess.run([make, "--no-print-directory", ".venv/.all"], check=False)
    if ready.returncode:
        if build:
            build.terminate()
            build.wait()
        return ready.returncode
    python = str(ROOT / ".venv" / "bin" / "python")
    os.execv(python, [python, "-m", "local.demo", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
