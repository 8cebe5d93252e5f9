"""Engines that a fleet's pods can run. kind.py is the protocol, argosy.py our own engine.

Another engine is another `EngineKind`; `workload.py` renders its pods like ours.
"""
