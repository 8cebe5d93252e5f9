"""The rivals by name, each with the setting that it got in `chosen`."""

from collections.abc import Callable, Mapping
from typing import Any

from argosy_operator.core.scaling.rivals.apa import AIBrix
from argosy_operator.core.scaling.rivals.chosen import CHOSEN
from argosy_operator.core.scaling.rivals.hpa import HorizontalPodAutoscaler, OnGpuUtilization
from argosy_operator.core.scaling.rivals.keda import Keda
from argosy_operator.core.scaling.rivals.kpa import Knative
from argosy_operator.core.scaling.rivals.static import Static

MAKERS: Mapping[str, Callable[..., Any]] = {
    "apa": AIBrix,
    "hpa": HorizontalPodAutoscaler,
    "hpa-gpu": OnGpuUtilization,
    "keda": Keda,
    "kpa": Knative,
    "static": Static,
}
"""A law of each name, with its thresholds as keywords."""

RIVALS: Mapping[str, Any] = {name: maker(**CHOSEN.get(name, {})) for name, maker in MAKERS.items()}
