"""How many replicas each role needs. Pure: observations and goals in, state and decision out.

Reading order: `goals` and `observe` (what comes in), `decision` (what goes out), `decide` (the
chain), then its steps: `signals`, `estimate`, `size`, `pace`, `explain`.
"""
