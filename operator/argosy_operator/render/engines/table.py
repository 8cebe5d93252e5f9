"""The engine of each `spec.engine.type`."""

from collections.abc import Mapping
from types import MappingProxyType

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.api.v1alpha1.engine import EngineType
from argosy_operator.render.engines.argosy import ARGOSY, ArgosyEngine
from argosy_operator.render.engines.openai import SGLANG, VLLM, OpenAiServer

EngineKind = ArgosyEngine | OpenAiServer
"""An engine program: how its container is started, and where it answers."""
KINDS: Mapping[EngineType, EngineKind] = MappingProxyType(
    {"argosy": ARGOSY, "vllm": VLLM, "sglang": SGLANG}
)


def kind_of(fleet: ServingDeployment) -> EngineKind:
    """The engine that the fleet's pods run."""
    return KINDS[fleet.spec.engine.type]
