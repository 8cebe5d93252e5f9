"""What `make bench-gateway` runs: an engine, clients, proxies, and a module per group of figures.

A group has `FIGURES`, its rows, and `measure`, which puts their values. `suites.gateway` lists the
groups.
"""
