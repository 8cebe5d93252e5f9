"""The engine's pure half: requests, scheduling, KV blocks and the handover's states.

Nothing here reads a clock, sleeps, logs or imports torch. `now` is an argument in seconds, and what
happens is a return value. The same code runs under the torch runner, the timing model and the
property tests. Reading order: `request`, `scheduler`, then what it calls: `batching`, `capacity`,
`preemption`, `blocks`, `handover`.
"""
