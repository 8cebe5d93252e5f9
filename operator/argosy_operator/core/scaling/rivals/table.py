"""The rivals by name, each with the setting that it got in `chosen`."""

from collections.abc import Callable, Mapping
from typing import Any

from argosy_operator.core.scaling.rivals.apa import AIBrix
from argosy_operator.core.scaling.rivals.chosen import CHOSEN
from argosy_operator.core.scaling.rivals.hpa import HorizontalPodAutoscaler, OnGpuUtilization
from argosy_operator.core.scaling.rivals.keda import Keda
from argosy_operator.core.scaling.rivals.kpa import Knative
from argosy_operator.core.scaling.rivals.planners.dynamo_load import DynamoLoad
from argosy_operator.core.scaling.rivals.planners.dynamo_throughput import DynamoThroughput
from argosy_operator.core.scaling.rivals.planners.heteroscale import HeteroScale
from argosy_operator.core.scaling.rivals.planners.llmd_slo import LlmdSlo
from argosy_operator.core.scaling.rivals.planners.tokenscale import TokenScale
from argosy_operator.core.scaling.rivals.planners.wva import Wva
from argosy_operator.core.scaling.rivals.static import Static

MAKERS: Mapping[str, Callable[..., Any]] = {
    "apa": AIBrix,
    "dynamo-load": DynamoLoad,
    "dynamo-throughput": DynamoThroughput,
    "heteroscale": HeteroScale,
    "hpa": HorizontalPodAutoscaler,
    "hpa-gpu": OnGpuUtilization,
    "keda": Keda,
    "kpa": Knative,
    "llmd-slo": LlmdSlo,
    "static": Static,
    "tokenscale": TokenScale,
    "wva": Wva,
}
"""A law of each name, with its thresholds as keywords."""

RIVALS: Mapping[str, Any] = {name: maker(**CHOSEN.get(name, {})) for name, maker in MAKERS.items()}
