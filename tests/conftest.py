"""Fixtures that every folder of tests may use."""

from tests.cluster.fixture import cluster, namespace

__all__ = ["cluster", "namespace"]
