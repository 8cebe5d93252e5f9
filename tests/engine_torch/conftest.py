"""The engine's own check of the CPU runs before the first product of this process.

The native libraries are built before the tests are collected, if their sources are newer. Triton's
kernels are interpreted, since no GPU compiles them here.
"""

import os

# Triton reads it when it is first imported, which transformers may do.
os.environ["TRITON_INTERPRET"] = "1"

import pytest

from argosy_engine.config import EngineConfig
from argosy_engine.model.native import compile as native
from argosy_engine.runtime import cpu

native.build()


@pytest.fixture(scope="session", autouse=True)
def settled_cpu():
    """oneDNN is capped at what works here before the first test multiplies; engines inherit it."""
    cpu.begin(EngineConfig(model="", served_name="", compute="torch", dtype="bfloat16"))
    return cpu.settle()
