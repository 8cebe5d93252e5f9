"""`kubectl argosy`: what users and administrators run beside kubectl.

Reading order: `app.py` (the verbs, exit statuses), `session.py` (how the cluster is reached),
`verbs/status.py` with `views/fleets.py` (a verb and what it prints). `views` is pure.
"""
