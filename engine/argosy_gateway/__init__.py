"""The gateway: one fleet's OpenAI endpoint, in front of its engine pods.

Reading order: `verdicts` (what is counted), `pick` and `pairs` (who serves), `relay` (how a request
travels), `app` (the surface), `serve` (sockets and drain). `endpoints`, `watch` and `credentials`
know the pods; `http1` and `sse` are the hot path.
"""
