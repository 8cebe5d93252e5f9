"""The Job that fills a claim with a model, so that serving pods never download.

Reading order: `fill.py` (what is written where, and when it counts as whole), `check.py` (which
models are refused before their weights are fetched), `hub.py` and `s3.py` (where files come from),
`cli.py` (the command, and how the operator learns what came of it).
designs/0029-model-sources.md says why this is a Job.
"""
