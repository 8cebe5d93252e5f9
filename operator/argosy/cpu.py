"""What the kernel says of this machine's CPU."""

from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def cpu_flags() -> set[str]:
    """Return the instruction sets that the kernel announces; empty where it announces none."""
    return set((_read("flags") or _read("Features")).split())


def cpu_name() -> str:
    """Return the model's name; empty where the kernel says none."""
    return _read("model name")


def _read(field: str) -> str:
    """Return this field of the first processor that has it; empty if none has."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""
