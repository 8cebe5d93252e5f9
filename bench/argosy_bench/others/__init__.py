"""Fleets of engines that are not ours, on the one-machine Kubernetes."""

from argosy_bench.others.run import ROWS, measure

__all__ = ["ROWS", "measure"]
