"""What the gateway adds to a stream, beside Envoy with one worker and beside no proxy at all.

The three run in turn, `ROUNDS` times, under the same arrivals of 200 streams of 20 tokens a second.
The added TTFT of a stream is its TTFT less the median of those that went to the engine directly.
"""

import statistics
from collections import defaultdict
from contextlib import AsyncExitStack

from argosy_bench.figures import Figure, Figures, Target
from argosy_bench.gateway.load import Load, Sample, run
from argosy_bench.gateway.processes import engine, envoy, envoy_program, gateway

__all__ = ["FIGURES", "measure"]

ROUNDS = 3

FIGURES = (
    Figure("added_ttft_ms_p50", "ms", Target("<=", 0.8, of_the_machine=True), digits=2),
    Figure("added_ttft_ms_p99", "ms", Target("<=", 6, of_the_machine=True), digits=2),
    Figure("cpu_us_per_chunk", "µs", Target("<=", 35, of_the_machine=True), digits=1),
    Figure("rss_mib", "MiB", Target("<=", 60), digits=1),
    Figure("start_s", "s", digits=2),
    # Absent where Envoy is not installed.
    Figure("envoy_added_ttft_ms_p50", "ms", digits=2),
    Figure("envoy_added_ttft_ms_p99", "ms", digits=2),
    Figure("envoy_cpu_us_per_chunk", "µs", digits=1),
    Figure("cpu_over_envoy", digits=2),
)


async def measure(figures: Figures, load: Load, rounds: int = ROUNDS) -> None:
    """Put the figures of the streams; takes 36 s a round."""
    samples: dict[str, list[Sample]] = defaultdict(list)
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(engine(period_s=load.period_s))
        ours = await stack.enter_async_context(gateway(source.port))
        servers = [source, ours]
        if envoy_program() is not None:
            servers.append(await stack.enter_async_context(envoy(source.port)))
        else:
            figures.notes["envoy"] = "not installed: its figures are absent"
        for seed in range(rounds):
            for server in servers:
                samples[server.name].append(
                    await run(server.port, load, seed=seed, cpu_s=server.cpu_s)
                )
        figures.put("start_s", ours.start_s)
        figures.put("rss_mib", ours.rss_mib())
    direct_s = statistics.median(_ttft_s(samples["engine"]))
    _put(figures, "", samples["gateway"], direct_s)
    if samples["envoy"]:
        _put(figures, "envoy_", samples["envoy"], direct_s)
        pairs = zip(samples["gateway"], samples["envoy"], strict=True)
        ratios = [a.cpu_us_per_chunk / b.cpu_us_per_chunk for a, b in pairs]
        figures.put("cpu_over_envoy", statistics.median(ratios))


def _put(figures: Figures, prefix: str, samples: list[Sample], direct_s: float) -> None:
    ordered = sorted(_ttft_s(samples))
    p99_s = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    figures.put(f"{prefix}added_ttft_ms_p50", (statistics.median(ordered) - direct_s) * 1e3)
    figures.put(f"{prefix}added_ttft_ms_p99", (p99_s - direct_s) * 1e3)
    cpu = statistics.median(sample.cpu_us_per_chunk for sample in samples)
    figures.put(f"{prefix}cpu_us_per_chunk", cpu)


def _ttft_s(samples: list[Sample]) -> list[float]:
    return [seconds for sample in samples for seconds in sample.ttft_s]
