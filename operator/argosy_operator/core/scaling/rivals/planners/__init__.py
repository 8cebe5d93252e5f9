"""Rivals that know what a replica can do, or learn it, and size from the load."""
