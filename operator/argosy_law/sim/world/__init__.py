"""A fleet in virtual time, one event a change and none a token.

Reading order: `machine` (how long a step takes, and how many steps fit) → `pods` (what one pod
holds) → `fleet` (requests go through the pods) → `scrape` (what a Prometheus would have of it).
"""
