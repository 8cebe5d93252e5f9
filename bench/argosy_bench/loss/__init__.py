"""`make test-loss`: requests under load while every part of a fleet is scaled, killed and cut off.

`schedule` draws the events, `faults` carries them out on a one-machine cluster, `client` sends the
requests, `judge` compares each answer with the text that it must have, and `leftovers` counts what
is still held when all is over.
"""
