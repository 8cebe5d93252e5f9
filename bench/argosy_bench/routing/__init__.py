"""Figures of the gateway's choice of pods, groups of `make bench-gateway`."""
