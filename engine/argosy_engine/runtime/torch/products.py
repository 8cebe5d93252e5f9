"""The child process of `runtime.cpu`: tries matrix products at one instruction set after the other.

    python -m argosy_engine.runtime.torch.products THREADS [ISA …]

Torch is imported once. Each instruction set gets a fork of this process, which may crash. The
first one at which both types work is the last one tried. Prints one line of JSON, a list of
{"isa", "lived", "speedup", "end"}; see `runtime.cpu.Attempt`. The exit status is 0 even if forks
crash.
"""

import contextlib
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Work = Callable[[int], Iterator[dict[str, Any]]]

_TYPES = ("float32", "bfloat16")
_ROWS = (1, 8, 17, 32, 128)  # oneDNN changes its kernels with the row count
_TIMED_ROWS = (1, 8, 32, 128)
_WIDTH, _INNER = 1024, 4096  # large enough that all threads take part
_REPEATS = 4


def main(words: list[str], work: Work | None = None) -> int:
    """`work` replaces the products in tests; the default is `products`."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # an expected crash leaves no core file
    report = os.dup(1)
    os.dup2(2, 1)  # oneDNN's own messages (ONEDNN_VERBOSE) must not mix with the report
    if work is None:
        import torch  # noqa: F401 - imported here once, so that no fork has to

        work = products
    attempts = []
    for isa in words[1:]:
        attempts.append(_attempt(isa, int(words[0]), work))
        if len(attempts[-1]["lived"]) == len(_TYPES):
            break
    os.write(report, json.dumps(attempts).encode() + b"\n")
    return 0


def products(threads: int) -> Iterator[dict[str, Any]]:
    """The engine's kinds of product: {"lived": type} after each type, then {"speedup"}."""
    import torch
    import torch.nn.functional as F  # noqa: N812 - torch's own convention

    from argosy_engine.model.trunk import Linear

    torch.set_num_threads(threads)
    packed: dict[str, list[Linear]] = {}
    with torch.inference_mode():
        for name in _TYPES:
            dtype = getattr(torch, name)
            up = torch.ones(_INNER, _WIDTH, dtype=dtype)
            down = torch.ones(_WIDTH, _INNER, dtype=dtype)
            packed[name] = [Linear(up), Linear(down)]
            for rows in _ROWS:
                x = torch.ones(rows, _WIDTH, dtype=dtype)
                _through(packed[name], x)
                F.linear(x, up)
                torch.bmm(x.view(1, rows, -1), up.t().unsqueeze(0))
            yield {"lived": name}
        yield {"speedup": _speedup(packed)}


def _through(layers: list[Any], x: Any) -> float:
    """Seconds of this thread's CPU."""
    began = time.thread_time()
    for layer in layers:
        x = layer(x)
    return time.thread_time() - began


def _speedup(packed: dict[str, list[Any]]) -> float:
    """Time in float32 over time in bfloat16: the geometric mean over the row counts.

    In one thread and its CPU time, the types in turn and the best of several repeats: engines that
    start at once on the same cores must come to the same answer.
    """
    import torch

    torch.set_num_threads(1)
    logs = []
    for rows in _TIMED_ROWS:
        inputs = {name: torch.ones(rows, _WIDTH, dtype=getattr(torch, name)) for name in packed}
        best = dict.fromkeys(packed, math.inf)
        for _ in range(_REPEATS):
            for name, layers in packed.items():
                best[name] = min(best[name], _through(layers, inputs[name]))
        logs.append(math.log(best["float32"] / best["bfloat16"]))
    return math.exp(sum(logs) / len(logs))


def _attempt(isa: str, threads: int, work: Work) -> dict[str, Any]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _in_fork(isa, threads, work, write)
    os.close(write)
    attempt: dict[str, Any] = {"isa": isa, "lived": [], "speedup": None, "end": ""}
    with os.fdopen(read, encoding="ascii") as lines:
        for line in lines:
            event = json.loads(line)
            if "lived" in event:
                attempt["lived"].append(event["lived"])
            else:
                attempt |= event
    _, status = os.waitpid(child, 0)
    attempt["end"] = _end(os.waitstatus_to_exitcode(status))
    return attempt


def _in_fork(isa: str, threads: int, work: Work, report: int) -> None:
    status = 1
    with contextlib.suppress(BaseException):  # the exit status tells; a fork must not return
        os.environ["ONEDNN_MAX_CPU_ISA"] = isa  # read by oneDNN at its first use, which is below
        for event in work(threads):
            os.write(report, json.dumps(event).encode() + b"\n")
        status = 0
    os._exit(status)


def _end(code: int) -> str:
    if code >= 0:
        return "" if code == 0 else f"exit status {code}"
    return signal.Signals(-code).name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
