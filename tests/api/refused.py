"""Specs that must be refused, with a piece of the sentence that says what to write instead.

Read by the unit test (Python twins), and by the cluster test (the real API server).
"""

from typing import Any

MODEL = {"uri": "sim://llama-70b-h100-tp4"}
VLLM = {"type": "vllm", "image": "vllm/vllm-openai:v0.32.0"}
SQL = {"name": "sql", "uri": "pvc://adapters/sql"}


def _replicas(role: str, **replicas: int) -> dict[str, Any]:
    return {"roles": {role: {"replicas": replicas}}}


def _slo(ttft: Any = "1s", tpot: Any = "40ms", **more: Any) -> dict[str, Any]:
    return {"slo": {"ttft": {"target": ttft}, "tpot": {"target": tpot}, **more}}


def _schedule(**fields: Any) -> dict[str, Any]:
    day = {"name": "day", "start": "0 8 * * *", "duration": "10h", "roles": {}}
    return {"autoscaling": {"schedules": [day | fields]}}


def _typed(*types: Any) -> dict[str, Any]:
    names = [kind["name"] for kind in types]
    return {"gpuTypes": list(types), "roles": {"colocated": {"gpuTypes": names}}}


H100: dict[str, Any] = {"name": "h100", "costPerHour": "4.10"}
L40S: dict[str, Any] = {"name": "l40s", "costPerHour": "1", "nodeSelector": {"gpu": "l40s"}}
TIMES = {
    "prefillBaseMs": "3.92",
    "perPromptTokenMs": "0.1066",
    "decodeBaseMs": "28.8",
    "perSequenceMs": "0.2825",
    "perContextTokenMs": "0.000094",
}

LISTS: dict[str, Any] = {
    **_typed(H100),
    **_slo(classes=[{"name": "batch", "ttft": {"target": "9s"}, "tpot": {"target": "1s"}}]),
    **_schedule(),
    "engine": {"env": [{"name": "A"}]},
}
"""A spec whose lists have items of required fields alone."""

# name of the case: (spec beside the model, name of the fleet, piece of the sentence)
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "another engine without an image": (
        {"engine": {"type": "vllm"}},
        "bad",
        "write engine.image, the release that you run",
    ),
    "a flag of vLLM that is written by the operator": (
        {"engine": {**VLLM, "args": ["--served_model_name=other"]}},
        "bad",
        "use the field of the spec instead",
    ),
    "a flag of SGLang that is written by the operator": (
        {"engine": {"type": "sglang", "image": "sgl:1", "args": ["--tp", "2"]}},
        "bad",
        "use the field of the spec instead",
    ),
    "an adapter that the gateway would not know": (
        {"engine": {**VLLM, "args": ["--enable-lora", "--lora_modules", "sql=/a"]}},
        "bad",
        "write --lora-modules as model.adapters",
    ),
    "an adapter of our engine": (
        {"model": MODEL | {"adapters": [SQL]}},
        "bad",
        "write engine.type vllm, or merge the adapter",
    ),
    "an adapter with a name of the model": (
        {"model": MODEL | {"servedNames": ["chat", "sql"], "adapters": [SQL]}, "engine": VLLM},
        "bad",
        "or take it out of model.servedNames",
    ),
    "an adapter with the fleet's name": (
        {"model": {"uri": "pvc://models/a", "adapters": [SQL]}, "engine": VLLM},
        "sql",
        "engines know the model by the fleet's name",
    ),
    "an adapter of a hub": (
        {"model": MODEL | {"adapters": [{**SQL, "uri": "hf://org/sql"}]}, "engine": VLLM},
        "bad",
        "the adapter's folder on a claim",
    ),
    "steps that vLLM sizes itself": (
        {"engine": {**VLLM, "maxNumBatchedTokens": "auto"}},
        "bad",
        "write a number for maxNumBatchedTokens",
    ),
    "a simulation by vLLM": ({"engine": VLLM}, "bad", "only Argosy's own engine simulates"),
    "vLLM with TLS": (
        {"engine": VLLM, "security": {"tls": {"secretName": "t"}}},
        "bad",
        "let a service mesh encrypt",
    ),
    "vLLM whose streams move": (
        {"engine": VLLM, "drain": {"mode": "migrate"}},
        "bad",
        "with engine.type vllm or sglang write finish",
    ),
    "vLLM that changes its role": (
        {"engine": VLLM, "mode": "disaggregated", "autoscaling": {"roleFlip": True}},
        "bad",
        "leave autoscaling.roleFlip out",
    ),
    "wrong mode": ({"mode": "split"}, "bad", "colocated"),
    "tokens of a step in words": (
        {"engine": {"maxNumBatchedTokens": "many"}},
        "bad",
        'from 16 to 1048576, or "auto"',
    ),
    "min above max": (_replicas("colocated", min=3, max=2), "bad", "lower min or raise max"),
    "min above the default max": (_replicas("decode", min=9), "bad", "(default 8)"),
    "shedding by an SLO that is not there": (
        {"routing": {"shedTtftPercent": 150}},
        "bad",
        "set slo, or leave",
    ),
    "a canary without old pods beside it": (
        {"rollout": {"strategy": "Recreate", "canary": {}}},
        "bad",
        "Paced or BlueGreen",
    ),
    "a canary of most requests": (
        {"rollout": {"canary": {"share": "60%"}}},
        "bad",
        "from 1% to 50%",
    ),
    "a canary of no request": (
        {"rollout": {"canary": {"share": "0%"}}},
        "bad",
        "from 1% to 50%",
    ),
    "a canary of all requests": (
        {"rollout": {"canary": {"share": "100%"}}},
        "bad",
        "from 1% to 50%",
    ),
    "a canary that ends at once": (
        {"rollout": {"canary": {"for": "0s"}}},
        "bad",
        "such as 200ms or 15s",
    ),
    "a canary for a word": (
        {"rollout": {"canary": {"for": "long"}}},
        "bad",
        "such as 200ms or 15s",
    ),
    "a canary for a year": (
        {"rollout": {"canary": {"for": "8760h"}}},
        "bad",
        "from 1m to 6h",
    ),
    "a canary that is lost by chance": (
        {"rollout": {"canary": {"level": "12.5%"}}},
        "bad",
        "from 1% to 20%",
    ),
    "a range of gateways without an end": (
        {"routing": {"autoscaling": {"min": 2}}},
        "bad",
        "routing.autoscaling.max is missing",
    ),
    "a range of gateways that is none": (
        {"routing": {"autoscaling": {"min": 4, "max": 3}}},
        "bad",
        "raise max, or lower min",
    ),
    "a range of gateways beside another scaler": (
        {"routing": {"autoscaling": {"policy": "External", "min": 1}}},
        "bad",
        "leave min and max out",
    ),
    "a queue that does not exist": ({"routing": {"queue": "lifo"}}, "bad", "deadline"),
    "a class that is called as the one of slo itself": (
        _slo(classes=[{"name": "default", "ttft": {"target": "1s"}, "tpot": {"target": "1s"}}]),
        "bad",
        "choose another name",
    ),
    "SLO of zero": (_slo(ttft="0s"), "bad", "duration of more than 0"),
    "attainment of 100%": (_slo(attainment="100%"), "bad", "such as 90%"),
    "a schedule without five fields": (_schedule(start="0 8 * *"), "bad", "0 8 * * MON-FRI"),
    "a schedule that is always open": (_schedule(duration="200h"), "bad", "is replicas.min"),
    "a time zone that is an offset": (_schedule(timeZone="+02:00"), "bad", "Europe/Berlin"),
    "a schedule for more than the role may have": (
        _schedule(roles={"colocated": {"min": 9}}),
        "bad",
        "change one of the two",
    ),
    "a schedule for less than the role must have": (
        _schedule(roles={"decode": {"max": 0}}),
        "bad",
        "change one of the two",
    ),
    "a schedule whose bounds cross": (
        _schedule(roles={"colocated": {"min": 3, "max": 2}}),
        "bad",
        "lower min or raise max",
    ),
    "schedules beside another autoscaler": (
        {"autoscaling": {"policy": "External", **_schedule()["autoscaling"]}},
        "bad",
        "KEDA's cron scaler",
    ),
    "budget below the minimum": (
        {"autoscaling": {"gpuBudget": {"max": 0}}},
        "bad",
        "raise the budget or lower replicas.min",
    ),
    "a cost that is no amount": (
        _typed({**H100, "costPerHour": "4,10"}),
        "bad",
        'such as "4.10"',
    ),
    "GPU types of one role alone": (
        {
            "mode": "disaggregated",
            "gpuTypes": [H100],
            "roles": {"decode": {"gpuTypes": ["h100"]}},
        },
        "bad",
        "write gpuTypes for both roles, or for none",
    ),
    "a GPU type that is not declared": (
        {"roles": {"colocated": {"gpuTypes": ["h100"]}}},
        "bad",
        "declare the type there",
    ),
    "GPU types that the scheduler cannot tell apart": (
        _typed(H100, {"name": "a100", "costPerHour": "1.5"}),
        "bad",
        "give each a nodeSelector, such as nvidia.com/gpu.product",
    ),
    "a GPU type's name that is no label": (
        _typed({**H100, "name": "H100"}),
        "bad",
        "such as h100",
    ),
    "a profile in seconds": (
        _typed({**H100, "profile": {**TIMES, "decodeBaseMs": "30ms"}}),
        "bad",
        'write milliseconds as a number in quotes, such as "28.8"',
    ),
    "flips between GPU types": (
        {
            "mode": "disaggregated",
            "autoscaling": {"roleFlip": True},
            "gpuTypes": [H100],
            "roles": {"prefill": {"gpuTypes": ["h100"]}, "decode": {"gpuTypes": ["h100"]}},
        },
        "bad",
        "leave autoscaling.roleFlip or the roles' gpuTypes out",
    ),
    "a fallback that never waits": (
        {"autoscaling": {"gpuTypeFallback": "1s"}},
        "bad",
        "5s",
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
    "advice of a policy that decides nothing": (
        {"autoscaling": {"policy": "None", "advisory": True}},
        "bad",
        "or leave advisory out",
    ),
    "to zero by advice": (
        {"autoscaling": {"advisory": True, "scaleToZero": {}}},
        "bad",
        "with autoscaling.advisory others set the replicas",
    ),
    "to zero under another autoscaler": (
        {"autoscaling": {"policy": "External", "scaleToZero": {}}},
        "bad",
        "or write policy: Goodput",
    ),
    "a start from zero without a pod": (
        {"autoscaling": {"policy": "None", "scaleToZero": {}}} | _replicas("colocated", min=0),
        "bad",
        "write replicas.min: 1 or more",
    ),
    "requests that do not outwait the start": (
        {"autoscaling": {"scaleToZero": {"wait": "179s"}}},
        "bad",
        "raise wait",
    ),
    "zero after no time": (
        {"autoscaling": {"scaleToZero": {"after": "4s"}}},
        "bad",
        "write a duration from 5s to 168h",
    ),
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
    "vLLM apart on GPUs for which it may choose different block sizes": (
        {
            "model": {"uri": "pvc://models/llama"},
            "engine": VLLM,
            "mode": "disaggregated",
            "gpuTypes": [H100 | {"nodeSelector": {"gpu": "h100"}}, L40S],
            "roles": {"prefill": {"gpuTypes": ["h100"]}, "decode": {"gpuTypes": ["l40s"]}},
        },
        "bad",
        "write one gpuType for both roles, or a size in engine.args, such as --block-size=64",
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
    "name of 41 characters": ({}, "a" * 41, "at most 40"),
    "name that begins with a digit": ({}, "70b", "begins with a letter"),
    "weights from a hub without a claim": (
        {"model": {"uri": "hf://org/model@main"}},
        "bad",
        "write it with these, such as {size: 40Gi}",
    ),
    "a claim to fetch into, and nothing to fetch": (
        {"model": {"uri": "pvc://models/llama", "fetch": {"size": "40Gi"}}},
        "bad",
        "leave it out with others",
    ),
    "two claims to fetch into": (
        {"model": {"uri": "s3://b/p", "fetch": {"size": "40Gi", "claimName": "models"}}},
        "bad",
        "write model.fetch.size for a claim that the operator makes",
    ),
    "a repository without its owner": (
        {"model": {"uri": "hf://model", "fetch": {"size": "40Gi"}}},
        "bad",
        "hf://<org>/<name>@<revision>",
    ),
    "path that climbs": ({"model": {"uri": "pvc://models/../etc"}}, "bad", "write pvc://"),
    "served name with a space": (
        {"model": MODEL | {"servedNames": ["good", "my model"]}},
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
