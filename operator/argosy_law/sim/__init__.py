"""Simulated fleets in virtual time, for tests and for trying rates before a cluster runs them."""
