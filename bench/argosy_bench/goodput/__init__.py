"""Goodput per GPU with prefill and decode together and apart, in the simulator."""
