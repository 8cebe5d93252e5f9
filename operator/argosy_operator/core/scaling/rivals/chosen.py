"""The thresholds that rivals run with. A rival that is not here has its own defaults.

`python -m argosy_bench.rivals.sweep --write` writes it: one setting for all traces. The
newest choice was made on azure_conv, mooncake.
"""

from collections.abc import Mapping

CHOSEN: Mapping[str, Mapping[str, float]] = {
    "apa": {"prefill": 1024, "decode": 16},
    "dynamo-load": {"limits": 0.5, "sensitivity": 0.8},
    "dynamo-throughput": {"itl": 0.6},
    "heteroscale": {"target": 200},
    "hpa": {"prefill": 2048, "decode": 24},
    "hpa-gpu": {"prefill": 0.7, "decode": 0.6},
    "keda": {"prefill": 2048, "decode": 24},
    "kpa": {"prefill": 0.75, "decode": 16},
    "llmd-slo": {"ttft": 1.5, "itl": 0.85},
    "tokenscale": {"prefill": 1.4, "decode": 2.0},
    "wva": {"kv": 0.25, "up": 0.85, "down": 0.5},
}
