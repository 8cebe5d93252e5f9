"""Prometheus: one round of queries per interval for all fleets of one server.

Reading order: `metrics` (the port: a fleet asks for its measurements), `rounds` (when queries are
sent, and for which fleets), `collect` (a round's queries, and a fleet's share of the answers),
`queries` (PromQL), `server` (HTTP), `allowlist` (addresses that users may name).
"""
