"""The engine's own check of the CPU runs before the first product of this process."""

import pytest

from argosy_engine.config import EngineConfig
from argosy_engine.runtime import cpu


@pytest.fixture(scope="session", autouse=True)
def settled_cpu():
    """oneDNN is capped at what works here before the first test multiplies; engines inherit it."""
    cpu.begin(EngineConfig(model="", served_name="", dtype="bfloat16"))
    return cpu.settle()
