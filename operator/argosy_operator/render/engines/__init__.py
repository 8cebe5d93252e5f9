"""Engines that a fleet's pods can run. kind.py is the protocol, argosy.py our own engine, openai.py
vLLM and SGLang, table.py the engine of each `spec.engine.type`.

Another engine is another `EngineKind`; `workload.py` renders its pods like ours.
"""
