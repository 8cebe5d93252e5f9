"""The engine: one process that serves a model over HTTP and hands KV over to its peers.

Reading order: `core/request.py` (a request's states), `core/scheduler.py` (what the next step
computes), `runtime/loop.py` (the thread that runs the steps). Then, as needed: `core/step.py`
(what a step is), `core/runner.py` (what computes it), `core/handover/` and `transfer/` (KV between
engines), `server/` (HTTP), `runtime/series.py` (every series), `config.py` (every option).
"""
