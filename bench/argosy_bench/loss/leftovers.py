"""What engines still hold when every request has ended and the fleet is whole."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from argosy_bench.loss.fleet import Fleet, NotWholeError, Pod, name_of, processes_of, role_of

WITHIN_S = 90.0
"""Time in which the last lease ends by itself."""
_API, _KV = 8000, 8002
_OPEN = {"01": "ESTABLISHED", "08": "CLOSE_WAIT"}
"""States of /proc/net/tcp in which a connection is held. One in TIME_WAIT has no owner."""


@dataclass(slots=True)
class Leftovers:
    """Sums over all engine pods."""

    kv_blocks: float = 0.0
    """Blocks with a reference; those of the prefix cache alone have none."""
    leases: float = 0.0
    requests: float = 0.0
    """In the batch, waiting or pulling."""
    sockets: int = 0
    """Connections on the API and KV ports."""

    def __iadd__(self, other: "Leftovers") -> "Leftovers":
        for field in fields(self):
            both = getattr(self, field.name) + getattr(other, field.name)
            setattr(self, field.name, both)
        return self

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))


def left(fleet: Fleet) -> tuple[Leftovers, list[str]]:
    """What is held once it no longer falls to nothing, and by which pods."""
    last: list[tuple[str, Leftovers]] = []

    def nothing() -> bool:
        engines = [pod for pod in fleet.pods() if role_of(pod) != "gateway"]
        last[:] = [(name_of(pod), _of(fleet, pod)) for pod in engines]
        return not any(held for _, held in last)

    with contextlib.suppress(NotWholeError):
        fleet.until("nothing is held", nothing, WITHIN_S)
    total = Leftovers()
    for _, held in last:
        total += held
    return total, [f"{name}: {held}" for name, held in last if held]


def _of(fleet: Fleet, pod: Pod) -> Leftovers:
    samples = fleet.metrics(pod, 8001)
    tables = [Path(f"/proc/{process}/net/tcp") for process in processes_of(pod)[:1]]
    return Leftovers(
        kv_blocks=round(_one(samples, "vllm:kv_cache_usage_perc") * _blocks(samples)),
        leases=_one(samples, "argosy_kv_leases_active"),
        requests=_one(samples, "vllm:num_requests_running")
        + _one(samples, "vllm:num_requests_waiting{"),
        sockets=sum(held_connections(table.read_text(), (_API, _KV)) for table in tables),
    )


def _one(samples: dict[str, float], beginning: str) -> float:
    """The sample with this name. LookupError: a series that is gone must not read as nothing."""
    return next(v for name, v in samples.items() if name.startswith(beginning))


def _blocks(samples: dict[str, float]) -> int:
    name = next(name for name in samples if name.startswith("vllm:cache_config_info"))
    return int(name.partition('num_gpu_blocks="')[2].partition('"')[0])


def held_connections(table: str, ports: Iterable[int]) -> int:
    """Connections of /proc/net/tcp that are held and have one of the ports at either end."""
    wanted = set(ports)
    count = 0
    for line in table.splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        ends = {int(end.rpartition(":")[2], 16) for end in (local, remote)}
        count += state in _OPEN and not wanted.isdisjoint(ends)
    return count
