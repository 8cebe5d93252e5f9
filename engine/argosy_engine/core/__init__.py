"""The engine's pure half: requests, block pool, scheduler, leases and the seams to the rest.

Nothing here reads a clock, sleeps, logs or imports torch: `now` is an argument in seconds, and
everything that happens is a return value. The same code runs under the torch runner, under the
timing model and under the property tests.
"""
