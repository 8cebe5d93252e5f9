"""Measures the product. `figures.py` writes every figures file; `suites/` holds what
`make bench-<name>` runs.

A developer's tool: it imports the operator, the gateway and the engine, and none of them imports
it. It is not in the wheel.
"""
