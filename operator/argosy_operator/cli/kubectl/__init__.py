"""`kubectl argosy`: what users and administrators run beside kubectl.

Reading order: `app.py` (the verbs, exit statuses), `session.py` (how the cluster is reached),
`status.py` (a verb and what it prints).
"""
