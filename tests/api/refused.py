"""Specs that must be refused, with a piece of the sentence that says what to write instead.

Read by the unit test (Python twins), and by the cluster test (the real API server).
"""

from typing import Any

MODEL = {"uri": "sim://llama-70b-h100-tp4"}


def _replicas(role: str, **replicas: int) -> dict[str, Any]:
    return {"roles": {role: {"replicas": replicas}}}


def _slo(ttft: Any = "1s", tpot: Any = "40ms", **more: Any) -> dict[str, Any]:
    return {"slo": {"ttft": {"target": ttft}, "tpot": {"target": tpot}, **more}}


_OPEN = {"verifyPeers": False, "networkPolicy": False}
POOL: dict[str, Any] = {"routing": {"gateway": "epp"}, "security": _OPEN}
"""A fleet behind a gateway of the cluster: with nothing else it is accepted."""

# name of the case: (spec beside the model, name of the fleet, piece of the sentence)
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "wrong mode": ({"mode": "split"}, "bad", "colocated"),
    "wrong dtype": ({"engine": {"dtype": "int4"}}, "bad", "float32"),
    "min above max": (_replicas("colocated", min=3, max=2), "bad", "lower min or raise max"),
    "min above the default max": (_replicas("decode", min=9), "bad", "(default 8)"),
    "shedding by an SLO that is not there": (
        {"routing": {"shedTtftPercent": 150}},
        "bad",
        "set slo, or leave",
    ),
    "a queue that does not exist": ({"routing": {"queue": "lifo"}}, "bad", "deadline"),
    "a class that is called as the one of slo itself": (
        _slo(classes=[{"name": "default", "ttft": {"target": "1s"}, "tpot": {"target": "1s"}}]),
        "bad",
        "choose another name",
    ),
    "a class whose name is no name": (
        _slo(classes=[{"name": "Batch", "ttft": {"target": "1s"}, "tpot": {"target": "1s"}}]),
        "bad",
        "lower-case letters",
    ),
    "SLO of zero": (_slo(ttft="0s"), "bad", "duration of more than 0"),
    "SLO without unit": (_slo(tpot="40"), "bad", "write 200ms or 2s"),
    "attainment of 100%": (_slo(attainment="100%"), "bad", "such as 90%"),
    "budget below the minimum": (
        {"autoscaling": {"gpuBudget": {"max": 0}}},
        "bad",
        "raise the budget or lower replicas.min",
    ),
    "flips between pods of two sizes": (
        {
            "mode": "disaggregated",
            "autoscaling": {"roleFlip": True},
            "roles": {"decode": {"resources": {"memory": "16Gi"}}},
        },
        "bad",
        "write the same resources and parallelism for both roles",
    ),
    "flips between pods with other GPUs": (
        {
            "mode": "disaggregated",
            "autoscaling": {"roleFlip": True},
            "roles": {"prefill": {"resources": {"gpu": 2}}},
        },
        "bad",
        "or leave roleFlip out",
    ),
    "a pool of prefill and decode pods": (
        POOL | {"mode": "disaggregated"},
        "bad",
        "write mode: colocated",
    ),
    "an SLO that nobody measures": (
        POOL | _slo(),
        "bad",
        "leave slo out, and write autoscaling.policy: External",
    ),
    "a pool whose pods ask for tokens": (
        POOL | {"security": {"networkPolicy": False}},
        "bad",
        "write verifyPeers: false and networkPolicy: false",
    ),
    "a pool whose gateway no policy admits": (
        POOL | {"security": {"verifyPeers": False}},
        "bad",
        "by a NetworkPolicy of your own",
    ),
    "a pool whose pods ask for certificates": (
        POOL | {"security": _OPEN | {"tls": {"secretName": "chat-tls"}}},
        "bad",
        "leave tls out",
    ),
    "a pool whose streams would move": (
        POOL | {"drain": {"mode": "migrate"}},
        "bad",
        "write finish",
    ),
    "a gateway that does not exist": ({"routing": {"gateway": "envoy"}}, "bad", "argosy"),
    "prefill and decode over GPUs that do not divide": (
        {
            "mode": "disaggregated",
            "roles": {
                "prefill": {"parallelism": {"tensor": 2}},
                "decode": {"parallelism": {"tensor": 3}},
            },
        },
        "bad",
        "write the same parallelism.tensor for both, or such as 2 and 4",
    ),
    "weights over two GPUs": (
        {
            "model": {"uri": "pvc://models/llama"},
            "roles": {"colocated": {"parallelism": {"tensor": 2}}},
        },
        "bad",
        "leave parallelism.tensor out",
    ),
    "flips between pods that split KV heads differently": (
        {
            "mode": "disaggregated",
            "autoscaling": {"roleFlip": True},
            "roles": {"prefill": {"parallelism": {"tensor": 2}}},
        },
        "bad",
        "and parallelism for both roles",
    ),
    "a transport that does not encrypt, with TLS": (
        {
            "kvTransfer": {"transport": "nixl"},
            "security": {"tls": {"secretName": "certificates"}},
        },
        "bad",
        "write transport: tcp",
    ),
    "a transport that does not exist": ({"kvTransfer": {"transport": "rdma"}}, "bad", "nixl"),
    "name of 41 characters": ({}, "a" * 41, "at most 40"),
    "huge name": ({}, "a" * 300, "at most 40"),
    "name with a dot": ({}, "a.b", "at most 40"),
    "name that begins with a digit": ({}, "70b", "begins with a letter"),
    "weights from a hub": (
        {"model": {"uri": "hf://org/model"}},
        "bad",
        "put the weights on a volume and write pvc://",
    ),
    "path that climbs": ({"model": {"uri": "pvc://models/../etc"}}, "bad", "write pvc://"),
    "served name with a space": (
        {"model": MODEL | {"servedName": "my model"}},
        "bad",
        "a served name has",
    ),
    "drain shorter than the lease": (
        {"drain": {"timeout": "30s"}},
        "bad",
        "raise drain.timeout",
    ),
    "no duration": ({"drain": {"timeout": "soon"}}, "bad", "write a duration"),
    "rate window of one scrape": (
        {"metrics": {"rateWindow": "20s"}},
        "bad",
        "at least twice metrics.scrapeInterval",
    ),
    "a decision every millisecond": (
        {"autoscaling": {"interval": "1ms"}},
        "bad",
        "write a duration from 1s to 1h",
    ),
    "a cold start of a day": (
        {"autoscaling": {"coldStart": "24h"}},
        "bad",
        "write a duration from 1s to 1h",
    ),
    "prefill without decode": (
        {"mode": "disaggregated", **_replicas("decode", min=0, max=0)},
        "bad",
        "give both roles replicas",
    ),
    "zero without parking": (_replicas("colocated", min=0), "bad", "write replicas.min: 1"),
    "a flag that Argosy writes": (
        {"engine": {"args": ["--role=prefill"]}},
        "bad",
        "use the field of the spec",
    ),
    "an environment name that Argosy sets": (
        {"engine": {"env": [{"name": "POD_IP"}]}},
        "bad",
        "choose another name",
    ),
    "memory in words": (
        {"roles": {"colocated": {"resources": {"memory": "plenty"}}}},
        "bad",
        "write a quantity",
    ),
    "less than no CPU": (
        {"roles": {"colocated": {"resources": {"cpu": -1}}}},
        "bad",
        "write a quantity",
    ),
    "a query in an address": (
        {"metrics": {"prometheus": {"url": "http://inside/secrets?x="}}},
        "bad",
        "write http://host:port",
    ),
    "a password in an address": (
        {"metrics": {"prometheus": {"url": "http://me:secret@prometheus:9090"}}},
        "bad",
        "a credential belongs",
    ),
}


def manifest(spec: dict[str, Any], name: str = "bad") -> dict[str, Any]:
    """The whole object of a case."""
    return {
        "apiVersion": "serving.argosy.dev/v1alpha1",
        "kind": "ServingDeployment",
        "metadata": {"name": name},
        "spec": {"model": MODEL, **spec},
    }
