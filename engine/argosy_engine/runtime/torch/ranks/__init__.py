"""Tensor parallelism: one process a rank, which share each step's matrices and KV heads.

Rank 0 is the engine's own process. It schedules, serves HTTP, draws the tokens and starts the other
ranks (`processes`), to which it sends what each step computes (`frames`). They compute it with
their part of the weights (`follower`), and all add their results (`group`).
"""
