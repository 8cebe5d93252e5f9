"""What a spec that the API server takes will do, and what it will not do, in sentences.

`kubectl argosy lint` and the webhook (designs/0032-warnings.md) say them.
"""
