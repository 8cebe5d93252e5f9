"""Compiles what pods import, as the image's build does: `python -m local.cluster.bytecode`.

Pods run as a user who may not write into the environment. Without this, each start of a pod
compiles again all that it imports: a gateway takes 0.9 s of CPU instead of 0.1, an engine with
torch 6 s instead of 2. Only what is imported is compiled: the whole environment takes a minute.
"""

import importlib
import importlib.util
import sys

_PROGRAMS = (
    "argosy_operator.cli",
    "argosy_operator.cli.explanation",
    "argosy_gateway.cli",
    "argosy_engine.cli",
    "argosy_operator.shell.app",
    "argosy_gateway.server.serve",
    "argosy_engine.server.serve",
    "argosy_engine.transfer.service",
    "argosy_engine.runtime.sim",
    "uvicorn.protocols.http.httptools_impl",  # chosen by name when a server starts
    "uvicorn.lifespan.off",
    "local.cluster.control.supervisor",  # started with the writing of bytecode off
    "local.cluster.cri.server",
)
_WITH_TORCH = "argosy_engine.runtime.torch.runner"


def main() -> int:
    """Import every program's modules; torch's too where torch is installed."""
    if sys.dont_write_bytecode:
        sys.stderr.write("nothing was compiled: put PYTHONDONTWRITEBYTECODE= before the command\n")
        return 1
    names = [*_PROGRAMS, *([_WITH_TORCH] if importlib.util.find_spec("torch") else [])]
    for name in names:
        importlib.import_module(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
