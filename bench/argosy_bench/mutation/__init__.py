"""Runs mutmut over a copy of the code, and reads what survived."""
