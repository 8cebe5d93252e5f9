"""What users measure and compute with: `argosy plan` and the commands beside it.

Each command is one module with a `main`. None of them needs a cluster: they speak HTTP with an
engine or a gateway, or play the simulator of `argosy_law` and the scheduler of
`argosy_engine.core`, which are pure.
"""
