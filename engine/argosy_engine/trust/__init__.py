"""Who may call this engine: service-account tokens, verified offline with the cluster's keys.

The operator writes the peers file (`peers.py`), the kubelet mounts it and the engine's own token.
`verifier.py` checks the tokens of callers; `server/proof.py` and `transfer` ask it.
"""
